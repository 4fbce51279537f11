from django.db.models import Q
from django.test import SimpleTestCase, TestCase, override_settings

from django_perfectqueue import store
from django_perfectqueue.conf import POLICIES
from django_perfectqueue.models import Account, FairShare, Policy
from django_perfectqueue.store.arithmetic.fair_order import (
    RULES,
    UserLanes,
    lane_id,
    lane_of,
    next_picks,
)

from ...factories import (
    acquire,
    after,
    assert_books_balance,
    completion,
    finish,
    finish_and_acquire,
    keys,
    retry,
    settle,
    status,
    submit,
    submit_many,
)

ANCESTORS = ["a", "b", *"aabaabaabaacba"]


def by(policy):
    return override_settings(PERFECTQUEUE={"POLICY": policy})


def users(leases):
    return [lease.user for lease in leases]


def policies():
    return dict(Account.objects.values_list("user", "policy"))


def give(**weights):
    for user, weight in weights.items():
        FairShare.objects.create(user=user, weight=weight, max_running=weight)


class RuleTests(SimpleTestCase):
    def test_the_key_of_slots_is_as_the_database_orders_them(self):
        lane = UserLanes(
            id=1, virtual_time=99.0, cost=5.0, weight=4.0, room=None, running=2, policy=Policy.SLOTS
        )

        self.assertEqual([lane.key(n, 5.0)[0] for n in (1, 2)], [0.75, 1.0])

    def test_very_short_tasks_take_one_slot_each(self):
        """
        Twenty in a row would be twenty slots for one user.
        """
        lanes = [
            UserLanes(id=n, virtual_time=0.0, cost=1e-4, weight=1.0, room=None, policy=Policy.SLOTS)
            for n in range(4)
        ]

        self.assertEqual(
            [pick.lane for pick in next_picks(lanes, 8, holder=1)][:8], [0, 1, 2, 3, 0, 1, 2, 3]
        )

    def test_each_name_that_the_setting_takes_has_its_rule(self):
        self.assertEqual(set(RULES), set(POLICIES))


class AncestorsTests(TestCase):
    """What PerfectQueue does with caps of 10, 5 and 1, which are its weights, too."""

    def fill(self):
        give(a=10, b=5, c=1)
        for user in "abc":
            submit_many(20, user=user)

    def test_one_by_one_by_each_policy(self):
        for policy in ("slots", "fair"):
            with self.subTest(policy), by(policy):
                self.fill()
                order = [lease.user for _slot in range(16) for lease in acquire()]

                self.assertEqual(order, ANCESTORS)
                self.assertEqual((order[:8].count("a"), order[:8].count("b")), (5, 3))
                self.assertEqual(acquire(), [])
                assert_books_balance(self)
            self.forget()

    def test_in_batches_by_each_policy(self):
        for policy in ("slots", "fair"):
            with self.subTest(policy), by(policy):
                self.fill()

                self.assertEqual(users(acquire(8)), ANCESTORS[:8])
                self.assertEqual(sorted(users(acquire(99))), sorted(ANCESTORS[8:]))
                assert_books_balance(self)
            self.forget()

    def forget(self):
        store.upkeep.clear(Q(queue="default"), using="default")
        FairShare.objects.all().delete()
        Account.objects.all().delete()


@by("slots")
class SlotsTests(TestCase):
    def test_the_lanes_carry_it(self):
        submit(user="ann")
        acquire()

        self.assertEqual(policies(), {"ann": Policy.SLOTS})

    def test_a_slot_that_is_free_goes_to_who_has_the_fewest_for_its_weight(self):
        FairShare.objects.create(user="ann", weight=3)
        submit_many(20, user="ann")
        submit_many(20, user="bob")
        held = acquire(8)
        self.assertEqual(sorted(users(held)), ["ann"] * 6 + ["bob"] * 2)

        finish(*(lease for lease in held if lease.user == "bob"))

        self.assertEqual(users(acquire(2)), ["bob", "bob"])

    def test_what_was_used_counts_for_nothing(self):
        for user in ("ann", "bob"):
            submit_many(20, user=user)
        for lease in acquire(8):
            finish(lease, seconds=100.0 if lease.user == "ann" else 0.1)

        self.assertEqual(sorted(users(acquire(4))), ["ann", "ann", "bob", "bob"])

    def test_what_is_measured_is_there_for_another_policy(self):
        submit_many(2, user="ann")
        finish(*acquire(2), seconds=100.0)

        self.assertGreater(Account.objects.get().virtual_time, 199)

    def test_tasks_that_are_just_being_finished_hold_no_slot(self):
        """
        Else a processor that takes and finishes batches would serve one user at a time.
        """
        for user in ("ann", "bob"):
            submit_many(20, user=user)
        held = acquire(4)
        finish(next(lease for lease in held if lease.user == "bob"))

        done = [completion(lease) for lease in held if lease.user == "ann"]

        self.assertEqual(users(finish_and_acquire(done)[0]), ["ann"])
        assert_books_balance(self)

    def test_tasks_without_a_user_get_their_share(self):
        """
        The ancestor's wait behind every user whose weight is above one.
        """
        FairShare.objects.create(user="ann", weight=3, max_running=3)
        submit_many(20)
        submit_many(20, user="ann")

        self.assertEqual(sorted(users(acquire(4))), ["", "ann", "ann", "ann"])

    def test_scheduled_and_retrying_tasks_hold_no_slot_and_eat_no_cap(self):
        FairShare.objects.create(user="ann", max_running=2)
        submit_many(4, user="bob")
        for number in range(4):
            submit(f"later{number}", user="ann", run_at=3600)
        submit("retried", user="ann")
        submit("now1", user="ann", now=after(1))
        submit("now2", user="ann", now=after(1))
        [first] = [lease for lease in acquire(2, now=after(1)) if lease.user == "ann"]
        retry(first, wait=600, now=after(1))

        self.assertEqual(
            keys(lease for lease in acquire(4, now=after(2)) if lease.user == "ann"),
            ["now1", "now2"],
        )

    def test_a_cap_of_none_is_none(self):
        """
        The ancestor lets one run all the same.
        """
        FairShare.objects.create(user="ann", max_running=0)
        submit_many(3, user="ann")

        self.assertEqual(acquire(3), [])


@by("fifo")
class FifoTests(TestCase):
    def test_all_users_wait_in_one_line(self):
        for number in range(3):
            submit(f"ann{number}", user="ann")
        submit("bob", user="bob", now=after(1))
        submit("first", user="carl", priority=1, now=after(2))

        held = acquire(9, now=after(3))

        self.assertEqual(keys(held), ["first", "ann0", "ann1", "ann2", "bob"])
        self.assertEqual(Account.objects.get().user, "")
        self.assertEqual(held[0].user, "carl")
        assert_books_balance(self)

    def test_the_share_of_no_user_is_that_of_the_line(self):
        FairShare.objects.create(user="ann", max_running=0)
        FairShare.objects.create(user="", max_running=2)
        submit_many(5, user="ann")

        self.assertEqual(len(acquire(9)), 2)

    def test_a_task_that_is_put_back_is_in_the_line_again(self):
        task = submit("k1", user="ann")
        [held] = acquire()
        why = store.Failure(error="boom")
        settle(held, store.Ending.fail(why=why), seconds=0.0, using="default", now=after(1))

        task.retry(now=after(2))

        self.assertEqual(keys(acquire(now=after(2))), ["k1"])
        self.assertEqual(Account.objects.get().user, "")

    def test_each_queue_has_its_own_policy(self):
        with by({"mail": "fifo", "*": "slots"}):
            for queue in ("mail", "reports"):
                submit(user="ann", queue=queue)
                acquire(queues=[queue])

        lanes = Account.objects.order_by("queue").values_list("queue", "user", "policy")
        self.assertEqual(list(lanes), [("mail", "", Policy.FAIR), ("reports", "ann", Policy.SLOTS)])


class ChangeTests(TestCase):
    """The setting changes while tasks wait, and hosts may differ in it for a while."""

    def drained(self):
        held = acquire(99)
        assert_books_balance(self)
        finish(*held)
        assert_books_balance(self)
        return keys(held)

    def test_what_waits_is_served_whatever_the_policy_was(self):
        for first in RULES:
            for second in RULES:
                with self.subTest(f"{first} to {second}"):
                    with by(first):
                        before = submit_many(3, user="ann") + submit_many(3, user="bob")
                        submit("first-taken", user="ann", priority=1)
                        finish(*acquire())
                    with by(second):
                        later = submit_many(3, user="ann") + submit_many(3, user="carl")
                        self.assertEqual(sorted(self.drained()), sorted(before + later))
                    store.upkeep.clear(Q(queue="default"), using="default")
                    Account.objects.all().delete()

    def test_lanes_that_are_served_take_the_new_policy_by_the_sweep(self):
        submit_many(5, user="ann")
        submit_many(5, user="bob")
        acquire(2)

        with by("slots"):
            self.assertEqual(store.upkeep.wake_forgotten_lanes(using="default"), 2)
            self.assertEqual(store.upkeep.wake_forgotten_lanes(using="default"), 0)

        self.assertEqual(policies(), {"ann": Policy.SLOTS, "bob": Policy.SLOTS})

    def test_the_sweep_heeds_the_policy_of_each_queue(self):
        for queue in ("mail", "reports"):
            submit_many(2, user="ann", queue=queue)
            acquire(queues=[queue])

        with by({"reports": "slots"}):
            self.assertEqual(store.upkeep.wake_forgotten_lanes(using="default"), 1)
            self.assertEqual(store.upkeep.wake_forgotten_lanes(using="default"), 0)

        self.assertEqual(Account.objects.get(policy=Policy.SLOTS).queue, "reports")

    def test_a_lane_that_wakes_takes_the_new_policy(self):
        submit("ann1", user="ann")
        submit("bob1", user="bob")
        finish(*acquire(9))
        acquire()

        with by("slots"):
            submit("ann2", user="ann")
            submit("bob2", user="bob")
            self.assertEqual(len(acquire(2)), 2)
            self.assertEqual(policies(), {"ann": Policy.SLOTS, "bob": Policy.SLOTS})

    def test_what_was_used_by_slots_is_neither_owed_nor_saved_when_fair_comes_back(self):
        with by("slots"):
            for user in ("ann", "bob"):
                submit_many(20, user=user)
            for lease in acquire(4):
                finish(lease, seconds=1000.0 if lease.user == "ann" else 1.0)

        self.assertEqual(store.upkeep.wake_forgotten_lanes(using="default"), 2)

        [level] = set(Account.objects.values_list("virtual_time", flat=True))
        self.assertEqual(len(acquire(1)), 1)
        submit("new", user="carl")
        self.assertIn("carl", users(acquire(9)))
        self.assertGreaterEqual(Account.objects.get(user="carl").virtual_time, level)

    def test_a_line_is_not_taken_for_its_users_by_who_knows_another_policy(self):
        """
        Else one host would give the line of all users the share of one of them.
        """
        FairShare.objects.create(user="ann", max_running=0)
        with by("fifo"):
            task = submit(user="ann")
            self.assertEqual(lane_of("default", "ann"), lane_id("default", ""))

        self.assertEqual(users(acquire()), ["ann"])
        self.assertEqual(Account.objects.get().user, "")
        self.assertEqual(status(task), "running")

    def test_who_knows_no_line_leaves_it_to_the_users_in_it(self):
        submit(user="ann")
        with by("fifo"):
            self.assertEqual(users(acquire()), ["ann"])

        self.assertEqual(Account.objects.get().user, "ann")
