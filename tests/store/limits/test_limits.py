"""What limits hold back, what they let start, and that they hold back nothing else."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest import mock

from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, skipUnlessDBFeature
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.models import Account, FairShare, Hold, Lane, Limit, Meter, Ticket
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.arithmetic.fair_order import lane_id
from django_perfectqueue.store.arithmetic.rate_limit import standing
from django_perfectqueue.store.claims.lanes import LANES_READ_AT_LEAST
from django_perfectqueue.store.lanes.apply import apply_limit
from django_perfectqueue.store.limits import meters
from django_perfectqueue.store.limits.meters import forget_limits, known_limits
from django_perfectqueue.store.tasks.close import Loss
from tests.factories import (
    NOON,
    acquire,
    after,
    assert_books_balance,
    completion,
    fail,
    finish,
    finish_and_acquire,
    keys,
    retry,
    settle,
    submit,
    submit_many,
)


def limit(name, *, scope="name", **terms):
    return Limit.objects.create(scope=scope, name=name, **terms)


def meter(name, scope="name"):
    return Meter.objects.get(key=f"{scope}:{name}")


class ConcurrencyTests(TestCase):
    def test_no_more_run_than_it_allows(self):
        limit("smtp", max_running=2)
        for number in range(5):
            submit(f"mail-{number}", limits=["smtp"])
        taken = acquire(10)
        self.assertEqual(keys(taken), ["mail-0", "mail-1"])
        self.assertEqual(acquire(10), [])
        finish(taken[0])
        self.assertEqual(keys(acquire(10)), ["mail-2"])

    def test_a_task_that_is_held_back_holds_back_no_other(self):
        limit("smtp", max_running=1)
        for number in range(3):
            submit(f"mail-{number}", user="acme", limits=["smtp"], priority=9)
        submit("report", user="acme")
        submit("other", user="bob")
        self.assertCountEqual(keys(acquire(10)), ["mail-0", "report", "other"])

    def test_a_name_without_a_limit_holds_back_nothing(self):
        submit("a", limits=["smtp"])
        submit("b", limits=["smtp"])
        self.assertEqual(keys(acquire(10)), ["a", "b"])

    def test_a_limit_of_none_lets_none_start_and_its_end_lets_them(self):
        held = limit("smtp", max_running=0)
        submit("a", limits=["smtp"])
        self.assertEqual(acquire(), [])
        held.delete()
        self.assertEqual(keys(acquire()), ["a"])

    def test_a_pause_lets_none_start(self):
        held = limit("smtp", paused=True)
        submit("a", limits=["smtp"])
        self.assertEqual(acquire(), [])
        held.paused = False
        held.save()
        self.assertEqual(keys(acquire()), ["a"])

    def test_all_limits_of_a_task_must_let_it_start(self):
        limit("smtp", max_running=2)
        limit("api", max_running=1)
        submit("both-1", limits=["smtp", "api"])
        submit("both-2", limits=["api", "smtp"])
        submit("mail", limits=["smtp"])
        self.assertEqual(keys(acquire(10)), ["both-1", "mail"])
        self.assertEqual((meter("smtp").running, meter("api").running), (2, 1))

    def test_lowering_it_disturbs_nothing_that_runs(self):
        held = limit("smtp", max_running=3)
        for number in range(5):
            submit(f"mail-{number}", limits=["smtp"])
        taken = acquire(10)
        held.max_running = 1
        held.save()
        self.assertEqual(finish(*taken[:2]), [])
        self.assertEqual(acquire(10), [])
        self.assertEqual(finish(taken[2]), [])
        self.assertEqual(keys(acquire(10)), ["mail-3"])

    def test_whatever_ends_a_task_ends_it_for_its_limits(self):
        limit("smtp", max_running=1)
        endings = {
            "finish": finish,
            "retry": lambda lease: retry(lease, wait=3600),
            "fail": fail,
            "release": lambda lease: store.settle(
                [lease], store.Ending.release(3600), using="default", now=NOON
            ),
            "cancel": lambda lease: settle(
                lease, store.Ending.cancel(), seconds=1, using="default", now=NOON
            ),
            "force": lambda lease: Queue()[lease.key].force_finish(now=NOON),
            "give back": lambda lease: (
                store.upkeep.give_back(
                    lease.holder,
                    using="default",
                    alive_time=60,
                    loss=Loss(crashed={lease.task_id}),
                    now=NOON,
                )
                and Queue()[lease.key].cancel_request(now=NOON)
            ),
        }
        for name, end in endings.items():
            with self.subTest(name):
                submit(f"{name}-task", limits=["smtp"])
                [lease] = acquire(10)
                self.assertEqual(meter("smtp").running, 1)
                end(lease)
                self.assertEqual(meter("smtp").running, 0)

    def test_a_lapsed_lease_frees_its_place(self):
        limit("smtp", max_running=1)
        submit("a", limits=["smtp"])
        acquire(lease=10)
        submit("b", limits=["smtp"], priority=1)
        self.assertEqual(keys(acquire(now=after(11))), ["b"])
        self.assertEqual(meter("smtp").running, 1)

    def test_an_expired_task_takes_no_place(self):
        limit("smtp", max_running=1, rate=1, period=60)
        submit("late", limits=["smtp"], expires_at=NOON + timedelta(seconds=1))
        submit("good", limits=["smtp"])
        self.assertEqual(keys(acquire(10, now=after(5))), ["good"])
        self.assertEqual(meter("smtp").running, 1)


class ScopeTests(TestCase):
    def setUp(self):
        forget_limits("default")
        self.addCleanup(forget_limits, "default")

    def test_one_of_a_type_holds_for_tasks_that_wait_already(self):
        for number in range(3):
            submit(f"pdf-{number}", type="pdf")
        submit("csv", type="csv")
        limit("pdf", scope="type", max_running=1)
        taken = acquire(10) + acquire(10)
        self.assertCountEqual(keys(taken), ["pdf-0", "csv"])
        self.assertEqual(Ticket.objects.get(task__key="pdf-1").attempt, 0)
        self.assertEqual(acquire(10), [])
        finish(*taken)
        self.assertEqual(keys(acquire(10)), ["pdf-1"])

    def test_one_of_a_type_places_new_tasks_at_once(self):
        limit("pdf", scope="type", max_running=1)
        submit("a", type="pdf")
        submit("b", type="pdf")
        lanes = set(Ticket.objects.values_list("lane", flat=True))
        self.assertEqual(keys(acquire(10)), ["a"])
        self.assertEqual(set(Ticket.objects.values_list("lane", flat=True)), lanes)

    def test_one_of_a_queue(self):
        limit("reports", scope="queue", max_running=2)
        for user in ("ann", "bob", "carl"):
            submit(f"report-{user}", queue="reports", user=user)
            submit(f"mail-{user}", queue="mails", user=user)
        self.assertEqual(len(acquire(10, queues=["reports"])), 2)
        self.assertEqual(len(acquire(10, queues=["reports", "mails"])), 3)

    def test_one_of_a_user_over_all_queues(self):
        limit("ann", scope="user", max_running=1)
        submit("a", queue="reports", user="ann")
        submit("b", queue="mails", user="ann")
        submit("c", queue="mails", user="bob")
        self.assertEqual(keys(acquire(10, queues=["reports", "mails"])), ["a", "c"])

    def test_when_it_is_gone_they_are_held_no_more(self):
        held = limit("pdf", scope="type", max_running=1)
        for number in range(3):
            submit(f"pdf-{number}", type="pdf")
        self.assertEqual(keys(acquire(10)), ["pdf-0"])
        held.delete()
        self.assertEqual(keys(acquire(10)), ["pdf-1", "pdf-2"])

    def test_a_failed_task_that_is_put_back_keeps_to_its_limits(self):
        limit("smtp", max_running=1)
        submit("a", limits=["smtp"])
        [lease] = acquire()
        fail(lease)
        Queue()["a"].retry(now=NOON)
        submit("b", limits=["smtp"], priority=1)
        self.assertEqual(keys(acquire(10)), ["b"])


class RateTests(TestCase):
    def test_so_many_start_in_each_period(self):
        limit("api", rate=10, period=60, burst=1)
        for number in range(30):
            submit(f"call-{number:02}", limits=["api"])
        started = []
        for second in range(0, 121, 2):
            taken = acquire(10, now=after(second))
            finish(*taken, now=after(second))
            started += [second] * len(taken)
        self.assertEqual(started, list(range(0, 121, 6)))

    def test_a_burst_may_start_at_once_after_a_pause(self):
        limit("api", rate=1, period=10, burst=3)
        for number in range(10):
            submit(f"call-{number}", limits=["api"])
        counts = [len(acquire(10, now=after(second))) for second in (0, 5, 10, 19, 20, 60)]
        self.assertEqual(counts, [3, 0, 1, 0, 1, 3])

    def test_a_whole_rate_may_start_at_once_by_default(self):
        limit("api", rate=4, period=60)
        for number in range(10):
            submit(f"call-{number}", limits=["api"])
        self.assertEqual(len(acquire(10)), 4)
        self.assertEqual(len(acquire(10, now=after(15))), 1)

    def test_what_is_given_back_unrun_has_started_all_the_same(self):
        limit("api", rate=1, period=60, burst=1)
        submit("call", limits=["api"])
        [lease] = acquire()
        store.settle([lease], store.Ending.release(), using="default", now=NOON)
        self.assertEqual(acquire(), [])
        self.assertEqual(keys(acquire(now=after(60))), ["call"])

    def test_what_is_given_back_late_lets_no_more_start(self):
        limit("api", rate=1, period=1, burst=2)
        for number in range(5):
            submit(f"call-{number}", limits=["api"])
        [early] = acquire(1)
        taken = acquire(10, now=after(10))
        store.settle([early], store.Ending.release(), using="default", now=after(10))
        taken += acquire(10, now=after(10)) + acquire(10, now=after(10.5))
        self.assertEqual(len(taken), 2)

    def test_in_no_length_of_time_do_more_start_than_it_allows(self):
        rate, burst = 2, 3
        limit("api", rate=rate, period=1, burst=burst)
        submit_many(200, limits=["api"], expires_at=after(40))
        submit_many(200, limits=["api"])
        drawn = random.Random(1)
        now, starts, held = 0.0, [], []
        for _step in range(150):
            now += drawn.choice((0.0, 0.1, 0.4, 2.0))
            taken = acquire(drawn.randint(1, 5), now=after(now))
            starts += [now] * len(taken)
            held += taken
            for lease in drawn.sample(held, min(len(held), drawn.randint(0, 3))):
                held.remove(lease)
                if drawn.random() < 0.5:
                    finish(lease, now=after(now))
                else:
                    store.settle([lease], store.Ending.release(), using="default", now=after(now))
        for number, first in enumerate(starts):
            for count, last in enumerate(starts[number:], start=1):
                self.assertLessEqual(count, burst + rate * (last - first) + 0.001)
        self.assertGreater(len(starts), 0.5 * rate * now)

    def test_what_is_put_behind_another_gate_uses_up_no_start(self):
        limit("api", rate=1, period=60, burst=1)
        submit("call", type="pdf", limits=["api"])
        limit("pdf", scope="type", max_running=1)
        self.assertEqual(keys(acquire()), ["call"])

    def test_it_holds_back_no_other(self):
        limit("api", rate=1, period=60, burst=1)
        for number in range(3):
            submit(f"call-{number}", user="acme", limits=["api"])
            submit(f"report-{number}", user="acme")
        taken = acquire(10)
        self.assertCountEqual(keys(taken), ["call-0", "report-0", "report-1", "report-2"])

    def test_a_faster_rate_holds_at_once(self):
        held = limit("api", rate=1, period=3600, burst=1)
        submit("a", limits=["api"])
        submit("b", limits=["api"])
        acquire(10)
        held.period = 1
        held.save()
        self.assertEqual(keys(acquire(10, now=after(1))), ["b"])

    def test_the_look_from_afar_tells_when_the_next_may_start(self):
        limit("api", rate=1, period=60, burst=1)
        submit("a", limits=["api"])
        submit("b", limits=["api"])
        acquire(10)
        outlook = store.look(["default"], using="default", now=after(20))
        self.assertFalse(outlook.due)
        self.assertAlmostEqual(outlook.wait, 40, places=3)
        self.assertTrue(store.look(["default"], using="default", now=after(60)).due)


@skipUnlessDBFeature("has_select_for_update")
class WaitTests(TransactionTestCase):
    def test_a_rate_goes_by_the_time_after_a_lock_was_waited_for(self):
        """By the time before it, a meter that others have moved seems to be far ahead."""
        limit("api", rate=2, period=1, burst=1)
        for number in range(2):
            submit(f"call-{number}", limits=["api"], now=None)
        self.assertEqual(len(acquire(1, now=None)), 1)
        Meter.objects.update(next_at=None)
        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                Meter.objects.select_for_update().get()
                waiting = pool.submit(self.acquire_alone)
                time.sleep(2.0)
                [(moment,)] = Meter.objects.values_list(ServerNow())
                Meter.objects.update(next_at=moment + timedelta(seconds=0.5))
            self.assertEqual(waiting.result(), [])

    def acquire_alone(self):
        try:
            return acquire(1, now=None)
        finally:
            connection.close()


class FairnessTests(TestCase):
    def test_all_lanes_of_a_user_are_one_account(self):
        limit("smtp", max_running=100)
        for number in range(40):
            submit(f"mail-{number}", user="acme", limits=["smtp"])
            submit(f"report-{number}", user="acme")
            submit(f"other-{number}", user="bob")
        users = []
        for _ in range(40):
            [lease] = acquire()
            users.append(lease.user)
            finish(lease, seconds=1.0)
        self.assertEqual(users.count("acme"), 20)
        self.assertEqual(Account.objects.filter(user="acme").count(), 1)

    def test_priority_and_age_go_over_all_lanes_of_a_user(self):
        limit("smtp", max_running=100)
        submit("1-mail", limits=["smtp"])
        submit("2-report", now=after(1))
        submit("3-mail", now=after(2), limits=["smtp"])
        submit("0-report", now=after(3), priority=1)
        self.assertEqual(
            [acquire(now=after(9))[0].key for _ in range(4)],
            [
                "0-report",
                "1-mail",
                "2-report",
                "3-mail",
            ],
        )

    def test_in_one_batch_too(self):
        limit("smtp", max_running=100)
        for number in range(10):
            submit(f"{number}", limits=["smtp"] if number % 3 else [], now=after(number))
        self.assertEqual(keys(acquire(10, now=after(60))), [str(number) for number in range(10)])

    def test_a_users_cap_holds_over_all_its_lanes(self):
        FairShare.objects.create(user="acme", max_running=2)
        limit("smtp", max_running=100)
        for number in range(5):
            submit(f"mail-{number}", user="acme", limits=["smtp"])
            submit(f"report-{number}", user="acme")
        taken = acquire(10)
        self.assertEqual(len(taken), 2)
        self.assertEqual(acquire(10), [])
        finish(taken[0])
        self.assertEqual(len(acquire(10)), 1)

    def test_a_users_pause_holds_over_all_its_lanes(self):
        share = FairShare.objects.create(user="acme", paused=True)
        submit("mail", user="acme", limits=["smtp"])
        submit("report", user="acme")
        self.assertEqual(acquire(10), [])
        with self.captureOnCommitCallbacks(execute=True):
            share.delete()
        self.assertEqual(len(acquire(10)), 2)

    def test_users_behind_one_gate_share_it_by_weight(self):
        FairShare.objects.create(user="gold", weight=3)
        limit("smtp", max_running=1)
        for number in range(40):
            submit(f"gold-{number}", user="gold", limits=["smtp"])
            submit(f"tin-{number}", user="tin", limits=["smtp"])
        users = []
        for _ in range(40):
            [lease] = acquire(10)
            users.append(lease.user)
            finish(lease, seconds=1.0)
        self.assertAlmostEqual(users.count("gold"), 30, delta=1)

    def test_who_was_held_back_has_saved_no_credit(self):
        limit("smtp", max_running=0)
        submit("mail", user="acme", limits=["smtp"])
        acquire()
        for number in range(20):
            submit(f"bob-{number}", user="bob")
            [lease] = acquire()
            finish(lease, seconds=10.0)
        submit("report", user="acme")
        acquire()
        times = dict(Account.objects.values_list("user", "virtual_time"))
        self.assertGreaterEqual(times["acme"], 190)

    def test_who_was_held_back_by_a_limit_has_saved_no_credit_when_it_goes(self):
        held = limit("smtp", max_running=0)
        submit("mail", user="acme", limits=["smtp"])
        for number in range(21):
            submit(f"bob-{number}", user="bob")
        for _ in range(20):
            finish(*acquire(), seconds=10.0)
        held.delete()
        apply_limit("name:smtp", using="default")
        acme, bob = (Account.objects.get(user=user) for user in ("acme", "bob"))
        self.assertGreaterEqual(bob.virtual_time, 190)
        self.assertEqual(acme.virtual_time, bob.virtual_time)
        assert_books_balance(self)

    def test_a_users_cap_holds_over_its_lanes_in_later_rounds_too(self):
        FairShare.objects.create(user="acme", max_running=1)
        limit("smtp", max_running=9)
        submit("1-report", user="acme")
        submit("2-mail", user="acme", limits=["smtp"])
        submit("3-mail", user="acme", limits=["smtp"])
        for user in ("bob", "carl"):
            submit(user=user, key=user)
        acquire(2)
        for _ in range(3):
            acquire(10)
        self.assertLessEqual(Ticket.objects.filter(state=2, task__user="acme").count(), 1)
        assert_books_balance(self)

    def test_who_wakes_stands_level_with_who_is_served_and_not_with_who_is_held(self):
        limit("full", max_running=1)
        limit("free", max_running=100)
        for name in ("held-1", "held-2"):
            submit(name, user="held", limits=["full"])
        submit("served", user="served", limits=["free"])
        acquire(10)
        for number in range(3):
            submit(f"more-{number}", user="served", limits=["free"])
        for _ in range(2):
            finish(*acquire(), seconds=1000.0)
        submit("new", user="new")
        store.upkeep.wake_forgotten_lanes(using="default")
        new, served = (Account.objects.get(user=user) for user in ("new", "served"))
        self.assertGreater(new.virtual_time, 900)
        self.assertLessEqual(new.virtual_time, served.virtual_time + 1)

    def test_an_account_that_knows_nothing_of_an_open_lane_is_mended_by_the_sweep(self):
        limit("smtp", max_running=9)
        submit("mail", user="acme", limits=["smtp"])
        acquire()
        submit("another", user="acme", limits=["smtp"])
        store.upkeep.wake_forgotten_lanes(using="default")
        Account.objects.update(has_open=False)
        store.upkeep.wake_forgotten_lanes(using="default")
        self.assertEqual(keys(acquire()), ["another"])

    def test_a_change_lifts_nothing_where_time_has_no_say(self):
        with self.settings(PERFECTQUEUE={"POLICY": "slots"}):
            limit("smtp", max_running=1)
            for user in ("ann", "bob"):
                submit(user=user, key=user, limits=["smtp"])
                submit(user=user)
            acquire()
            before = list(Account.objects.order_by("pk").values_list("virtual_time", flat=True))
            apply_limit("name:smtp", using="default")
            after_ = list(Account.objects.order_by("pk").values_list("virtual_time", flat=True))
        self.assertEqual(before, after_)


class AllAtOnceTests(TestCase):
    """What may start is given by one acquire, also where a limit has held some back before."""

    def test_of_all_that_was_held_back(self):
        for terms in ({"max_running": 5}, {"rate": 5, "period": 60.0}):
            for users in (1, 3, 10, 20):
                with self.subTest(terms, users=users):
                    held = limit("smtp", **terms)
                    for number in range(20):
                        submit(f"k{number}", user=f"u{number % users}", limits=["smtp"])
                    first = acquire(10)
                    self.assertEqual((len(first), acquire(10)), (5, []))
                    finish(*first)
                    self.assertEqual(len(acquire(10, now=after(61))), 5)
                    self.assertEqual(acquire(10, now=after(61)), [])
                    Queue().clear()
                    held.delete()
                    Meter.objects.all().delete()

    def test_of_what_another_limit_holds_as_well(self):
        limit("api", max_running=2)
        limit("smtp", max_running=9)
        for number in range(2):
            submit(f"first-{number}", user=f"u{number}", limits=["api"])
        first = acquire(10)
        submit("both", user="u3", limits=["api", "smtp"])
        submit("more", user="u4", limits=["api"])
        self.assertEqual((len(first), acquire(10)), (2, []))
        finish(*first)
        self.assertCountEqual(keys(acquire(10)), ["both", "more"])

    def test_of_a_user_whose_tasks_without_limits_have_begun(self):
        limit("api", max_running=1)
        submit("first", user="u0", limits=["api"])
        first = acquire(10)
        submit("gone", user="u1", limits=["api"])
        submit("held", user="u2", limits=["api"])
        self.assertEqual((len(first), acquire(10)), (1, []))
        Queue()["gone"].cancel_request(now=NOON)
        submit("free", user="u2")
        finish(*first)
        self.assertCountEqual(keys(acquire(10)), ["free", "held"])

    def test_but_nothing_of_a_paused_user_who_was_served_since_it_was_held_back(self):
        limit("api", max_running=1)
        submit("first", user="u0", limits=["api"])
        first = acquire(1)
        for number in range(1, 9):
            submit(user=f"u{number}", limits=["api"])
        self.assertEqual(acquire(10), [])
        submit("free", user="u1")
        finish(*acquire(10), seconds=100.0)
        submit("more", user="u1")
        with self.captureOnCommitCallbacks(execute=True):
            FairShare.objects.create(user="u1", paused=True)
        finish(*first)
        self.assertNotIn("u1", [lease.user for lease in acquire(10)])

    def test_under_several_limits_and_caps(self):
        for seed in range(8):
            with self.subTest(seed=seed):
                drawn = random.Random(seed)
                limit("smtp", max_running=drawn.randint(1, 8))
                limit("api", rate=drawn.randint(1, 8), period=60.0)
                FairShare.objects.create(user="u0", max_running=drawn.randint(1, 3))
                for number in range(60):
                    given = drawn.sample(["smtp", "api", "none"], drawn.randint(0, 2))
                    user = f"u{int(drawn.expovariate(0.3))}"
                    submit(f"k{number}", user=user, limits=given)
                running, seconds, ended = [], 0, 0
                while ended < 60:
                    count = drawn.randint(1, 30)
                    taken = acquire(count, now=after(seconds))
                    if len(taken) < count:
                        self.assertEqual(acquire(count, now=after(seconds)), [])
                    running += taken
                    drawn.shuffle(running)
                    for lease in running[::2]:
                        finish(lease, now=after(seconds))
                        ended += 1
                    running = running[1::2]
                    seconds += drawn.choice([0, 7, 61])
                assert_books_balance(self)
                Queue().clear()
                # A lane is under a hold as long as that is stored.
                for model in (Limit, FairShare, Meter, Account, Lane, Hold):
                    model.objects.all().delete()


class SerialTests(TestCase):
    """What a processor is given, who runs it one after another."""

    def test_it_gets_a_part_of_the_room_and_others_the_rest(self):
        limit("smtp", max_running=4)
        for number in range(10):
            submit(f"mail-{number}", limits=["smtp"])
        self.assertEqual([len(acquire(10, serial=True)) for _ in range(5)], [1, 1, 1, 1, 0])

    def test_its_batch_ends_where_the_next_would_be_one_with_a_cap(self):
        FairShare.objects.create(user="acme", max_running=1)
        for number in range(10):
            submit(f"acme-{number}", user="acme")
            submit(f"bob-{number}", user="bob")
        users = [lease.user for lease in acquire(10, serial=True)]
        self.assertEqual(users.count("acme"), 1)
        self.assertLess(len(users), 4)

    def test_what_has_ended_frees_its_place_for_the_next_batch(self):
        FairShare.objects.create(user="acme", max_running=1)
        for number in range(3):
            submit(f"acme-{number}", user="acme")
        [lease] = acquire(10, serial=True)
        done = [completion(lease, seconds=0.1)]
        [again], _refused = finish_and_acquire(done, 10, serial=True)
        self.assertEqual(again.key, "acme-1")

    def test_lanes_that_have_run_dry_hide_no_work(self):
        for number in range(4):
            FairShare.objects.create(user=f"dry-{number}", max_running=1)
            submit(user=f"dry-{number}")
        for _ in range(4):
            finish(*acquire(10, serial=True))
        for number in range(3):
            submit(f"good-{number}", user="good")
        self.assertTrue(acquire(10, serial=True))

    def test_who_has_several_lanes_is_not_held_back_by_their_end(self):
        for number in range(4):
            submit(f"mail-{number}", user="acme", limits=["smtp"])
            submit(f"report-{number}", user="acme")
        submit("other", user="bob")
        self.assertEqual(len(acquire(20, serial=True)), 9)


class ManyTests(TestCase):
    def test_a_backlog_under_a_new_limit_holds_up_no_other(self):
        for number in range(300):
            submit(f"pdf-{number}", user="acme", type="pdf")
        submit("free", user="bob")
        limit("pdf", scope="type", max_running=0)
        with CaptureQueriesContext(connection) as queries:
            taken = acquire(10)
        self.assertEqual(keys(taken), ["free"])
        self.assertLess(len(queries), 60)

    def test_any_number_of_gates_can_be_asked(self):
        Limit.objects.bulk_create(
            Limit(scope="name", name=f"name-{number}", max_running=1) for number in range(600)
        )
        forget_limits("default")
        for number in range(600):
            submit(f"task-{number}", user=f"user-{number % 7}", limits=[f"name-{number}"])
        self.assertEqual(len(acquire(1000)), 600)


class UnknownNameTests(TestCase):
    """A name that a task lists holds nothing back, and costs nothing, until there is a limit."""

    def setUp(self):
        forget_limits("default")
        self.addCleanup(forget_limits, "default")

    def test_a_name_without_a_limit_makes_no_gate(self):
        for number in range(20):
            submit(f"task-{number}", limits=[f"tenant-{number}"])
        self.assertEqual(len(acquire(100)), 20)
        self.assertEqual((Hold.objects.count(), Meter.objects.count()), (0, 0))
        self.assertEqual(Account.objects.count(), 1)

    def test_a_limit_that_comes_later_holds_for_what_waits(self):
        for number in range(3):
            submit(f"mail-{number}", limits=["smtp", "other"])
        submit("free")
        limit("smtp", max_running=1)
        taken = acquire(10) + acquire(10)
        self.assertCountEqual(keys(taken), ["mail-0", "free"])
        self.assertEqual(Ticket.objects.get(task__key="mail-1").attempt, 0)
        self.assertEqual(acquire(10), [])
        finish(*taken)
        self.assertEqual(keys(acquire(10)), ["mail-1"])

    def test_a_second_limit_that_comes_later_holds_beside_the_first(self):
        limit("a", max_running=2)
        for number in range(4):
            submit(f"task-{number}", limits=["a", "b"])
        limit("b", max_running=1)
        taken = acquire(10) + acquire(10)
        self.assertEqual(len(taken), 1)
        finish(*taken)
        self.assertEqual(len(acquire(10)), 1)

    def test_what_stands_behind_a_limit_that_is_gone_is_held_no_more(self):
        held = limit("smtp", max_running=1)
        for number in range(3):
            submit(f"mail-{number}", limits=["smtp", "other"])
        self.assertEqual(len(acquire(10)), 1)
        held.delete()
        self.assertEqual(len(acquire(10)), 2)

    @mock.patch.object(meters, "FRESH", 600.0)
    def test_with_very_many_limits_each_is_asked_for(self):
        Limit.objects.bulk_create(
            Limit(scope="name", name=f"tenant-{number}", max_running=0)
            for number in range(meters.MOST + 1)
        )
        with CaptureQueriesContext(connection) as queries:
            found = known_limits({"name:tenant-7", "name:nobody"}, using="default")
        self.assertEqual(found, {"name:tenant-7"})
        self.assertEqual(len(queries), 2)
        with CaptureQueriesContext(connection) as queries:
            known_limits({"name:tenant-7", "name:nobody"}, using="default")
        self.assertEqual(len(queries), 0)


class AskingTests(TransactionTestCase):
    """A submit asks which limits there are, but seldom."""

    def setUp(self):
        forget_limits("default")
        self.addCleanup(forget_limits, "default")
        self.began = time.monotonic()

    def asks_after(self, seconds):
        now = self.began + seconds
        with (
            mock.patch.object(meters.time, "monotonic", return_value=now),
            CaptureQueriesContext(connection) as queries,
        ):
            submit(f"task-{seconds}")
        return any('FROM "perfectqueue_limit"' in one["sql"].replace("`", '"') for one in queries)

    def test_where_there_is_none_it_asks_each_half_minute(self):
        self.assertTrue(self.asks_after(0.0))
        self.assertFalse(self.asks_after(29.0))
        self.assertTrue(self.asks_after(31.0))

    def test_where_there_is_one_it_asks_each_second(self):
        limit("smtp", max_running=1)
        self.assertTrue(self.asks_after(0.0))
        self.assertFalse(self.asks_after(0.9))
        self.assertTrue(self.asks_after(1.1))


class LaneOfKeysTests(SimpleTestCase):
    def test_by_which_limits_a_lane_was_named_is_found(self):
        for count in (0, 1, 3, 6, 12):
            names = [f"name-{number}" for number in range(count)]
            chosen = {(), *((f"name:{name}",) for name in names[:2])}
            for listed in chosen | {tuple(sorted(f"name:{name}" for name in names))}:
                for more in ((), ("user:ann",), ("queue:q", "type:t")):
                    given = tuple(sorted({*listed, *more}))
                    lane = lane_id("q", "ann", given)
                    with self.subTest(names=count, given=given):
                        found = standing(lane, "q", "t", "ann", names)
                        self.assertEqual(found, ("ann", given))


class CostTests(TransactionTestCase):
    def test_only_meters_that_are_next_are_locked(self):
        for number in range(40):
            limit(f"name-{number}", max_running=1)
            submit(f"task-{number}", user=f"user-{number}", limits=[f"name-{number}"])
        self.assertEqual(len(acquire(1)), 1)
        self.assertLessEqual(Meter.objects.count(), LANES_READ_AT_LEAST)
        self.assertEqual(len(acquire(100)), 39)

    def test_what_is_free_is_found_behind_many_that_are_held_back(self):
        for number in range(30):
            limit(f"name-{number}", max_running=1)
            for each in "ab":
                submit(f"{each}-{number}", user=f"user-{number}", limits=[f"name-{number}"])
        self.assertEqual(len(acquire(100)), 30)
        limit("free", max_running=1)
        submit("free", user="zoe", limits=["free"])
        self.assertEqual(keys(acquire(1)), ["free"])
        self.assertEqual(acquire(1), [])

    def test_empty_lanes_in_front_do_not_hide_what_is_behind(self):
        for number in range(30):
            limit(f"name-{number}", max_running=1)
            submit(f"task-{number}", user=f"user-{number}", limits=[f"name-{number}"])
        finish(*acquire(100))
        submit("last", user="zoe", limits=["name-0", "name-1"])
        store.upkeep.wake_forgotten_lanes(using="default")
        Account.objects.exclude(user="zoe").update(has_waiting=True, virtual_time=0.0)
        self.assertEqual(keys(acquire(1)), ["last"])
