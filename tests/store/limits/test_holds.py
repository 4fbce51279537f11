"""A lane that a limit holds back is read by nobody, and comes back when the limit has room."""

import random
import time
from unittest import mock

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Account, FairShare, Hold, Lane, Limit, State, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.limits.holds import RECHECK
from django_perfectqueue.store.limits.meters import forget_limits
from django_perfectqueue.store.upkeep import timers

from ...examples import examples
from ...factories import (
    NOON,
    acquire,
    after,
    assert_books_balance,
    elsewhere,
    fail,
    finish,
    keys,
    submit,
)
from ...scale.case import expect_large_tables, refresh
from ...scale.meter import Meter

MORE = 1.1
ODD = 60
UNIT = {"postgresql": 1, "mysql": 1, "sqlite": 25}


def without_sweep():
    """Have the sweep not look at all limits, which an acquire with a given time asks it for."""
    return mock.patch.object(timers, "open_all_shut", return_value=0)


class HoldTests(TestCase):
    def setUp(self):
        forget_limits("default")
        self.addCleanup(forget_limits, "default")
        self.enterContext(without_sweep())

    def held(self):
        held = Lane.objects.exclude(held_by=0).values("account")
        return sorted(Account.objects.filter(pk__in=held).values_list("user", flat=True))

    def test_a_lane_behind_a_full_limit_is_held_back_at_once(self):
        set_limit("smtp", max_running=1)
        for user in ("ann", "bob"):
            for number in range(2):
                submit(f"{user}-{number}", user=user, limits=["smtp"])
        [lease] = acquire(10)
        self.assertEqual(self.held(), ["ann", "bob"])
        finish(lease, seconds=1.0)
        [lease] = acquire(10)
        self.assertEqual(self.held(), ["ann", "bob"])
        self.assertEqual(lease.key, "bob-0")

    def test_whatever_ends_a_task_lets_the_next_one_start(self):
        set_limit("smtp", max_running=1)
        for name, end in (
            ("fail", fail),
            (
                "release",
                lambda one: store.settle(
                    [one], store.Ending.release(3600), using="default", now=NOON
                ),
            ),
            ("force", lambda one: Queue()[one.key].force_finish(now=NOON)),
        ):
            with self.subTest(name):
                submit(f"{name}-1", limits=["smtp"])
                submit(f"{name}-2", limits=["smtp"])
                [lease] = acquire(10)
                self.assertEqual(acquire(10), [])
                end(lease)
                [other] = acquire(10)
                self.assertEqual({lease.key, other.key}, {f"{name}-1", f"{name}-2"})
                finish(other)

    def test_a_lapsed_lease_lets_the_next_one_start(self):
        set_limit("smtp", max_running=1)
        for number in range(2):
            submit(f"mail-{number}", limits=["smtp"])
        self.assertEqual(keys(acquire(10, lease=10)), ["mail-0"])
        self.assertEqual(acquire(10, now=after(5)), [])
        self.assertTrue(acquire(10, now=after(11)))

    def test_a_rate_lets_the_next_one_start_when_it_opens(self):
        set_limit("api", rate=1, period=10, burst=1)
        for number in range(3):
            submit(f"call-{number}", user=f"user-{number}", limits=["api"])
        self.assertEqual(len(acquire(10)), 1)
        self.assertEqual(acquire(10, now=after(9.9)), [])
        outlook = store.look(["default"], using="default", now=after(9))
        self.assertFalse(outlook.due)
        self.assertAlmostEqual(outlook.wait, 1.0, places=3)
        self.assertEqual(len(acquire(10, now=after(10))), 1)
        self.assertEqual(acquire(10, now=after(19.9)), [])
        self.assertEqual(len(acquire(10, now=after(20))), 1)

    def test_a_place_that_another_limit_keeps_a_lane_from_using_goes_to_the_next(self):
        set_limit("one", max_running=1)
        set_limit("two", max_running=1)
        submit("runs-one", limits=["one"])
        submit("both", user="ann", limits=["one", "two"], now=after(0.1))
        [first] = acquire(10)
        submit("runs-two", user="zoe", limits=["two"])
        self.assertEqual(keys(acquire(10)), ["runs-two"])
        submit("other", user="bob", limits=["one"], now=after(1))
        self.assertEqual(acquire(10, now=after(2)), [])
        finish(first, now=after(3))
        self.assertEqual(keys(acquire(10, now=after(3))), ["other"])

    def test_a_place_that_a_paused_user_does_not_use_goes_to_the_next(self):
        set_limit("one", max_running=1)
        submit("first", limits=["one"])
        [first] = acquire(10)
        for number, user in enumerate(("ann", "bob")):
            submit(user, user=user, limits=["one"], now=after(number))
        self.assertEqual(acquire(10, now=after(1)), [])
        finish(first, now=after(2))
        with self.captureOnCommitCallbacks(execute=True):
            set_share("ann", paused=True)
        self.assertEqual(keys(acquire(10, now=after(2))), ["bob"])

    def test_one_that_was_let_back_and_is_paused_then_keeps_the_place_for_a_second(self):
        set_limit("one", max_running=1)
        submit("first", user="zoe", limits=["one"])
        [first] = acquire(10)
        for number, user in enumerate(("ann", "bob", "cem")):
            submit(user, user=user, limits=["one"], now=after(number))
        self.assertEqual(acquire(10, now=after(4)), [])
        finish(first, now=after(5))
        # Others are before them in the fair order.
        submit("before", user="dan")
        Account.objects.exclude(user="dan").update(virtual_time=1000.0)
        zoe = Account.objects.get(user="zoe")
        Lane.objects.filter(account=zoe.pk).update(has_waiting=False, held_by=0)
        Account.objects.filter(user="zoe").update(has_open=False)
        self.assertEqual(keys(acquire(1, now=after(5))), ["before"])
        back = Lane.objects.filter(held_by=0).exclude(account=zoe.pk).get()
        back = Account.objects.get(pk=back.account)
        Account.objects.filter(user=back.user).update(paused=True)
        self.assertEqual(acquire(1, now=after(5)), [])
        [lease] = acquire(1, now=after(5 + RECHECK))
        self.assertIn(lease.user, {"ann", "bob", "cem"} - {back.user})

    def test_who_was_capped_while_a_limit_had_room_is_served_once_it_may(self):
        set_share("ann", max_running=1)
        set_limit("one", max_running=1)
        submit("first", user="zoe", limits=["one"])
        [first] = acquire(10)
        submit("mail", user="ann", limits=["one"])
        self.assertEqual(acquire(10), [])
        submit("report", user="ann", priority=1)
        [report] = acquire(10)
        finish(first)
        self.assertEqual(acquire(10), [])
        finish(report)
        self.assertEqual(keys(acquire(10)), ["mail"])

    def test_a_place_serves_the_other_queue_that_shares_the_limit(self):
        set_limit("smtp", max_running=1)
        for queue in ("one", "two"):
            for number in range(2):
                submit(f"{queue}-{number}", queue=queue, limits=["smtp"])
        [lease] = acquire(10, queues=["one"])
        self.assertEqual(acquire(10, queues=["two"]), [])
        finish(lease)
        self.assertEqual(keys(acquire(10, queues=["two"])), ["two-0"])

    def test_a_limit_that_opens_lets_back_all_it_held(self):
        set_limit("reports", scope="queue", paused=True)
        users = [f"user-{number}" for number in range(60)]
        for user in users:
            submit(user, queue="reports", user=user)
        self.assertEqual(acquire(10, queues=["reports"]), [])
        self.assertEqual(len(self.held()), 60)
        with self.captureOnCommitCallbacks(execute=True):
            set_limit("reports", scope="queue", paused=False)
        taken = [acquire(10, queues=["reports"]) for _ in range(6)]
        self.assertCountEqual([one.user for some in taken for one in some], users)

    def test_users_behind_one_limit_share_it_by_weight_however_many_they_are(self):
        FairShare.objects.create(user="user-7", weight=4)
        set_limit("smtp", max_running=1)
        for user in range(20):
            for number in range(30 if user == 7 else 10):
                submit(f"{user}-{number}", user=f"user-{user}", limits=["smtp"])
        users = []
        for _ in range(92):
            [lease] = acquire(10)
            users.append(lease.user)
            finish(lease, seconds=1.0)
        self.assertAlmostEqual(users.count("user-7"), 16, delta=1)
        others = [users.count(f"user-{number}") for number in range(20) if number != 7]
        self.assertLessEqual(max(others) - min(others), 1)
        assert_books_balance(self)


class CrashTests(TransactionTestCase):
    """What frees a place and what reports it are written together, so no death parts them."""

    def setUp(self):
        forget_limits("default")
        self.addCleanup(forget_limits, "default")
        set_limit("smtp", max_running=1)
        for number in range(3):
            submit(f"mail-{number}", limits=["smtp"], now=None)

    def test_a_process_that_dies_after_a_finish_leaves_the_place_to_be_found(self):
        [lease] = elsewhere(lambda: acquire(10, now=None))
        self.assertEqual(acquire(10, now=None), [])
        elsewhere(lambda: finish(lease, now=None))
        self.assertEqual(keys(elsewhere(lambda: acquire(10, now=None))), ["mail-1"])

    def test_one_that_dies_before_the_commit_has_freed_nothing(self):
        [lease] = acquire(10, now=None)
        with transaction.atomic():
            finish(lease, now=None)
            transaction.set_rollback(True)
        self.assertEqual(acquire(10, now=None), [])
        finish(lease, now=None)
        self.assertEqual(keys(acquire(10, now=None)), ["mail-1"])

    def test_one_that_dies_while_it_holds_back_lanes_has_held_back_none(self):
        with transaction.atomic():
            self.assertEqual(len(acquire(10, now=None)), 1)
            transaction.set_rollback(True)
        self.assertFalse(Lane.objects.exclude(held_by=0).exists())
        self.assertEqual(keys(acquire(10, now=None)), ["mail-0"])

    def test_an_edit_of_which_nobody_was_notified_is_found_by_the_sweep(self):
        self.assertEqual(len(acquire(10, now=None)), 1)
        Limit.objects.update(max_running=2)
        with without_sweep():
            self.assertEqual(acquire(10, now=None), [])
        self.assertEqual(store.upkeep.wake_forgotten_lanes(using="default"), 1)
        self.assertEqual(keys(acquire(10, now=None)), ["mail-1"])
        Limit.objects.all()._raw_delete("default")
        store.upkeep.wake_forgotten_lanes(using="default")
        self.assertEqual(keys(acquire(10, now=None)), ["mail-2"])

    def test_the_sweep_opens_no_limit_that_holds_nothing_back(self):
        while leases := acquire(10, now=None):
            finish(*leases, now=None)
        self.assertTrue(Hold.objects.filter(opens_at=None).exists())
        self.assertEqual(store.upkeep.wake_forgotten_lanes(using="default"), 0)
        self.assertFalse(Hold.objects.exclude(opens_at=None).exists())

    def test_a_counter_that_is_corrected_lets_the_next_one_start(self):
        [lease] = acquire(10, now=None)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE perfectqueue_meter SET running = 2")
        finish(lease, now=None)
        self.assertEqual(acquire(10, now=None), [])
        store.upkeep.recount_meters("", using="default")
        self.assertEqual(keys(acquire(10, now=None)), ["mail-1"])


class RandomTests(TransactionTestCase):
    """Whatever the order of acts, no task is left behind a limit that has room."""

    def test_none_waits_for_a_sweep(self):
        self.enterContext(without_sweep())
        for seed in range(examples(4)):
            with self.subTest(seed=seed):
                self.play(random.Random(seed))

    def play(self, chance):
        limits = {"a": 1, "b": 2, "c": 3}
        for name, most in limits.items():
            set_limit(name, max_running=most)
        set_share("user-1", max_running=2)
        forget_limits("default")
        held = []
        for step in range(150):
            act = chance.choice(["submit", "submit", "acquire", "finish", "release", "pause"])
            if act == "submit":
                names = chance.sample(["a", "b", "c"], chance.randint(0, 3))
                submit(user=f"user-{chance.randint(1, 5)}", limits=names, now=after(step))
            elif act == "acquire":
                held += acquire(chance.randint(1, 4), now=after(step), lease=10_000)
                self.assert_none_could_start(step)
            elif act == "finish" and held:
                finish(held.pop(chance.randrange(len(held))), now=after(step))
            elif act == "release" and held:
                store.settle([held.pop()], store.Ending.release(), using="default", now=after(step))
            elif act == "pause":
                set_share("user-2", paused=chance.random() < 0.5)
        set_share("user-2", paused=False)
        for step in range(150, 450):
            finish(*held, now=after(step))
            held = acquire(5, now=after(step), lease=10_000)
            if not Ticket.objects.exists():
                break
        self.assertFalse(Ticket.objects.exists())
        assert_books_balance(self)

    def assert_none_could_start(self, step):
        """Each lane under a hold whose limit has room is looked at soon."""
        running = dict.fromkeys("abc", 0)
        for limits in Ticket.objects.filter(state=State.RUNNING).values_list(
            "task__limits", flat=True
        ):
            for name in limits.split(",") if limits else ():
                running[name] += 1
        most = dict(Limit.objects.values_list("name", "max_running"))
        for hold in Hold.objects.filter(pk__in=Lane.objects.values("held_by")):
            name = hold.key.partition(":")[2]
            if running[name] < most[name]:
                self.assertIsNotNone(hold.opens_at, (hold.key, running))
                self.assertLessEqual(hold.opens_at, after(step + RECHECK))


class CostTests(TransactionTestCase):
    """An acquire costs the same with few names that have a limit, and with many."""

    few, many = 10, 500

    def setUp(self):
        forget_limits("default")
        self.addCleanup(forget_limits, "default")

    def fill(self, names, most, limit):
        """Have users with three tasks behind a limit each; fill limits with room for one."""
        Limit.objects.bulk_create(
            [
                Limit(scope="name", name=name, max_running=most)
                for name in dict.fromkeys(limit.format(number) for number in names)
            ],
            ignore_conflicts=True,
        )
        forget_limits("default")
        Queue().submit_many(
            {
                "key": f"{number}-{each}",
                "type": "report",
                "user": f"user-{number}",
                "limits": [limit.format(number)],
            }
            for number in names
            for each in range(3)
        )
        while store.schedules.fire_due_timers(using="default"):
            pass
        while most == 1 and (leases := acquire(100, now=None)):
            self.held = leases
        refresh()

    def measured(self, act):
        with transaction.atomic():
            expect_large_tables()
            with Meter().on() as meter:
                act()
            transaction.set_rollback(True)
        return meter

    def assert_flat(self, act, *, most, limit="tenant-{}"):
        self.fill(range(self.few), most, limit)
        few = self.measured(act)
        self.fill(range(self.few, self.many), most, limit)
        allowed = few.rows * MORE + ODD * UNIT[connection.vendor]
        for _wait in range(40):
            many = self.measured(act)
            if many.rows <= allowed:
                break
            # InnoDB reads past entries of an index that were deleted until it has purged them.
            time.sleep(0.5)
        self.assertLessEqual(many.rows, allowed, many.worst())
        self.assertLessEqual(len(many.readings), len(few.readings) + 1)

    def test_limits_with_room(self):
        self.assert_flat(lambda: self.assert_taken(1), most=10)

    def test_limits_that_are_full(self):
        self.assert_flat(self.go_on, most=1)

    def test_users_behind_one_limit_that_is_full(self):
        self.assert_flat(self.go_on, most=1, limit="shared")

    def go_on(self):
        finish(self.held[0], now=None)
        self.assert_taken(1)

    def test_limits_that_are_full_and_none_is_free(self):
        self.assert_flat(lambda: self.assert_taken(0), most=1)

    def assert_taken(self, count):
        self.assertEqual(len(acquire(count or 10, now=None)), count)

    def test_a_backlog_of_many_users_behind_a_new_limit_is_cleared_from_the_way_in_parts(self):
        set_limit("reports", scope="type", max_running=0)
        forget_limits("default")
        users = 300
        Queue().submit_many(
            {"key": f"{number}", "type": "reports", "user": f"user-{number}"}
            for number in range(users)
        )
        submit("free", user="zoe", now=None)
        while store.schedules.fire_due_timers(using="default"):
            pass
        Account.objects.filter(user="zoe").update(virtual_time=10.0)
        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(keys(acquire(1, now=None)), ["free"])
        self.assertLess(len(queries), 80)
        self.assertEqual(Lane.objects.exclude(held_by=0).count(), users)
        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(acquire(1, now=None), [])
        self.assertLess(len(queries), 40)
