from datetime import timedelta
from unittest import mock

from django.db import connection
from django.test import TestCase, TransactionTestCase, override_settings, tag
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.models import Account, DeadLetter, FairShare, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.claims.lanes import Lanes
from django_perfectqueue.store.lanes.apply import apply_shares

from ...factories import (
    NOON,
    acquire,
    after,
    assert_books_balance,
    completion,
    elsewhere,
    finish,
    finish_and_acquire,
    keys,
    retry,
    running,
    settle,
    status,
    submit,
    submit_many,
)


class OrderTests(TestCase):
    def test_an_empty_queue_gives_nothing(self):
        self.assertEqual(acquire(), [])

    def test_the_oldest_goes_first(self):
        for second, key in enumerate(("first", "second", "third")):
            submit(key, now=after(second))

        self.assertEqual(keys(acquire(3, now=after(9))), ["first", "second", "third"])

    def test_a_larger_priority_goes_first(self):
        for priority in (0, 5, -5):
            submit(f"p{priority}", priority=priority)

        self.assertEqual(keys(acquire(3)), ["p5", "p0", "p-5"])

    def test_priority_is_within_a_user_and_not_between_users(self):
        """Else whoever sets the largest number gets the whole queue."""
        for number in range(3):
            submit(f"ann{number}", user="ann", priority=1000)
            submit(f"bob{number}", user="bob")

        self.assertEqual({key[:3] for key in keys(acquire(2))}, {"ann", "bob"})

    def test_a_due_task_goes_by_its_due_time_and_not_behind_the_rest(self):
        submit("scheduled", run_at=10)
        submit("early", now=after(5))
        submit("late", now=after(15))

        self.assertEqual(keys(acquire(3, now=after(20))), ["early", "scheduled", "late"])

    def test_a_task_for_later_waits_for_its_time(self):
        submit("later", run_at=60)

        self.assertEqual(acquire(now=after(59)), [])
        self.assertEqual(keys(acquire(now=after(60))), ["later"])

    def test_a_batch_holds_no_more_than_was_asked_for(self):
        submit_many(7)

        self.assertEqual([len(acquire(n)) for n in (3, 3, 3, 3)], [3, 3, 1, 0])

    def test_queues_are_tried_in_the_order_given(self):
        submit("b", queue="b")
        submit("a", queue="a")
        submit("c", queue="c")

        self.assertEqual(keys(acquire(9, queues=["b", "a"])), ["b", "a"])

    def test_another_queue_is_not_touched(self):
        submit("k1", queue="other")

        self.assertEqual(acquire(), [])

    def test_a_lease_tells_all_that_a_handler_needs(self):
        submit("k1", type="user_task", data={"uid": 1}, user="user_1", priority=2)
        [held] = acquire()

        self.assertEqual(
            (held.key, held.type, held.user, held.payload, held.priority, held.queue),
            ("k1", "user_task", "user_1", '{"uid":1}', 2, "default"),
        )
        self.assertEqual((held.attempt, held.tries, held.errors, held.crashes), (1, 1, 0, 0))
        self.assertEqual((held.created_at, held.run_at), (NOON, NOON))


class LeaseTests(TestCase):
    def test_a_held_task_is_not_given_away(self):
        running()

        self.assertEqual(acquire(now=after(59)), [])

    def test_a_lapsed_lease_makes_a_new_attempt(self):
        _task, slow = running("k1")
        [quick] = acquire(now=after(60))

        self.assertEqual((quick.key, quick.attempt), ("k1", slow.attempt + 1))
        self.assertEqual((quick.errors, quick.crashes), (0, 1))
        assert_books_balance(self)

    def test_only_the_attempt_that_holds_the_lease_can_finish(self):
        task, slow = running()
        [quick] = acquire(now=after(60))

        self.assertEqual(len(finish(slow, result='"late"', now=after(61))), 1)
        self.assertEqual(finish(quick, result='"in time"', now=after(61)), [])
        self.assertEqual(task.metadata().result, "in time")

    def test_a_preempted_holder_can_write_nothing(self):
        """Every write names its attempt; a paused process that wakes up changes nothing."""
        task, slow = running(data={"a": 1})
        [quick] = acquire(now=after(60))
        before = Task.objects.values().get(), Ticket.objects.values().get()

        common = {"using": "default", "now": after(61)}
        why = store.Failure()
        for write in (
            lambda: settle(slow, store.Ending.retry(wait=1, why=why), seconds=0, **common),
            lambda: settle(slow, store.Ending.fail(why=why), seconds=0, **common),
            lambda: settle(slow, store.Ending.cancel(), seconds=0, **common),
            lambda: store.update_payload(slow, "{}", alive_time=9, **common),
        ):
            with self.assertRaises(PreemptedError):
                write()
        self.assertEqual(store.settle([slow], store.Ending.release(), **common), {})
        [pulse] = store.leases.heartbeat([slow], alive_time=99, **common)

        self.assertFalse(pulse.held)
        self.assertEqual((Task.objects.values().get(), Ticket.objects.values().get()), before)
        self.assertEqual(finish(quick, now=after(61)), [])
        self.assertEqual(status(task), "finished")

    def test_a_finished_task_is_never_delivered_again(self):
        _task, held = running()
        finish(held)

        self.assertEqual(acquire(now=after(86_400)), [])

    @override_settings(PERFECTQUEUE={"RETRY_WAIT": 0})
    def test_a_task_that_keeps_losing_its_processor_fails(self):
        """What kills every process that runs it would else kill them for ever."""
        task = submit()
        for attempt in range(5):
            self.assertEqual(len(acquire(now=after(60 * attempt))), 1)

        self.assertEqual(acquire(now=after(60 * 5)), [])
        self.assertEqual(status(task), "failed")
        self.assertEqual(DeadLetter.objects.get().crashes, 5)
        assert_books_balance(self)

    def test_from_the_second_time_on_it_waits_in_between(self):
        """Else it would take down one processor after another, five within a second."""
        task = submit()
        acquire()
        [again] = acquire(now=after(60))
        self.assertEqual(acquire(now=after(120)), [])
        self.assertEqual(status(task, now=after(120)), "retrying")

        wait = (Ticket.objects.get().timer_at - after(120)).total_seconds()
        self.assertAlmostEqual(wait, 15, delta=15 / 4)
        self.assertEqual(len(finish(again, now=after(130))), 1)
        [third] = acquire(now=after(140))
        self.assertEqual((third.crashes, third.attempt), (2, 3))
        assert_books_balance(self)


class ExpiryTests(TestCase):
    def test_a_task_past_its_expiry_is_not_run(self):
        task = submit(expires_at=30)
        other = submit()

        self.assertEqual(keys(acquire(5, now=after(30))), [other.key])
        self.assertEqual(status(task), "expired")
        self.assertEqual(DeadLetter.objects.get().status, "expired")
        assert_books_balance(self)

    def test_expired_tasks_do_not_hide_those_behind_them(self):
        """An empty answer means that nothing is due."""
        for number in range(50):
            submit(f"old{number}", expires_at=30)
        submit("new")

        self.assertEqual(keys(acquire(1, now=after(31))), ["new"])
        self.assertEqual(DeadLetter.objects.count(), 50)
        assert_books_balance(self)

    def test_a_task_before_its_expiry_is(self):
        submit("k1", expires_at=30)

        self.assertEqual(keys(acquire(now=after(29))), ["k1"])


class FairOrderTests(TestCase):
    def test_users_take_turns_whoever_came_first(self):
        submit_many(100, user="flood")
        submit("one", user="late", now=after(1))

        self.assertIn("one", keys(acquire(2, now=after(2))))

    def test_a_newcomer_is_served_at_any_backlog(self):
        """Its first task must not wait for the backlog of another, nor get ahead for ever."""
        submit_many(50, user="flood")
        for held in acquire(20):
            finish(held, seconds=1.0)
        submit_many(50, user="late", now=after(1))

        users = [held.user for held in acquire(20, now=after(2))]
        self.assertAlmostEqual(users.count("late"), 10, delta=2)

    def test_weights_share_the_turns(self):
        FairShare.objects.create(user="gold", weight=3)
        for user in ("gold", "iron"):
            submit_many(60, user=user)

        users = [held.user for held in acquire(40)]
        self.assertEqual(users.count("gold"), 30)

    def test_measured_time_is_charged_and_not_turns(self):
        """Of two users with tasks of 20 and of 1 second, each gets half of the time."""
        cost = {"slow": 20.0, "quick": 1.0}
        for user in cost:
            submit_many(500, user=user)
        time_of = dict.fromkeys(cost, 0.0)
        for turn in range(300):
            [held] = acquire(lease=10_000.0, now=after(turn))
            finish(held, seconds=cost[held.user], now=after(turn))
            time_of[held.user] += cost[held.user]

        share = time_of["slow"] / sum(time_of.values())
        self.assertAlmostEqual(share, 0.5, delta=0.05)

    def test_a_batch_does_not_exceed_a_cap(self):
        FairShare.objects.create(user="ann", max_running=2)
        submit_many(5, user="ann")

        held = acquire(5)
        self.assertEqual(len(held), 2)
        self.assertEqual(acquire(5), [])
        finish(held[0])
        self.assertEqual(len(acquire(5)), 1)

    def test_the_ancestors_caps_as_weights_give_the_ancestors_order(self):
        """Users with caps of 10, 5 and 1 and deep backlogs get 5/3/0, then 10/5/1, then none."""
        caps = {"ann": 10, "bob": 5, "cat": 1}
        for user, cap in caps.items():
            FairShare.objects.create(user=user, weight=cap, max_running=cap)
            submit_many(30, user=user)

        users = [held.user for _turn in range(16) for held in acquire()]
        self.assertEqual([users[:8].count(user) for user in caps], [5, 3, 0])
        self.assertEqual([users.count(user) for user in caps], [10, 5, 1])
        self.assertEqual(acquire(5), [])

    def test_a_cap_of_none_and_a_pause_are_no_turns_at_all(self):
        FairShare.objects.create(user="ann", max_running=0)
        FairShare.objects.create(user="bob", paused=True)
        for user in ("ann", "bob", "cat"):
            submit(user, user=user)

        self.assertEqual(keys(acquire(5)), ["cat"])

    def test_scheduled_and_retrying_tasks_eat_no_cap(self):
        FairShare.objects.create(user="ann", max_running=1)
        submit(user="ann", run_at=3600)
        _task, held = running(user="ann")
        retry(held, wait=3600)
        submit("now", user="ann")

        self.assertEqual(keys(acquire(5)), ["now"])

    def test_tasks_without_a_user_have_a_turn_of_their_own(self):
        submit_many(20)
        submit_many(20, user="ann")

        users = [held.user for held in acquire(10)]
        self.assertEqual(users.count(""), 5)

    def test_tasks_without_a_user_are_given_by_their_weight(self):
        FairShare.objects.create(user="", weight=3)
        submit_many(40)
        submit_many(40, user="ann")

        users = [held.user for held in acquire(20)]
        self.assertEqual(users.count(""), 15)

    def test_a_newcomer_among_many_with_long_tasks_is_next(self):
        """What others' tasks cost says nothing of its own, and must not hold it back."""
        for user in ("ann", "bob", "cat"):
            submit_many(50, user=user)
        for turn in range(12):
            [held] = acquire(now=after(turn))
            finish(held, seconds=100.0, now=after(turn))
        submit_many(50, user="late", now=after(12))

        users = [held.user for held in acquire(8, now=after(13))]
        self.assertEqual(users[0], "late")
        self.assertLessEqual(users.count("late"), 3)

    def test_who_was_idle_has_saved_no_credit(self):
        submit_many(50, user="busy")
        for held in acquire(20):
            finish(held, seconds=10.0)
        submit_many(50, user="idle", now=after(1))
        for held in acquire(20, now=after(2)):
            finish(held, seconds=10.0)

        times = dict(Account.objects.values_list("user", "virtual_time"))
        self.assertLess(times["busy"] - times["idle"], 150)
        self.assertGreater(times["idle"], 100)


class LaneTests(TestCase):
    def test_a_lane_without_work_sleeps_and_wakes_again(self):
        submit("first", user="ann")
        submit_many(9, user="bob")
        acquire(6)
        self.assertEqual([lane.user for lane in Account.objects.filter(has_waiting=True)], ["bob"])

        submit("next", user="ann")
        self.assertIn("next", keys(acquire(9)))

    def test_the_only_lane_stays_awake(self):
        """It competes with no one, and its next task need not wake it."""
        running(user="ann")
        self.assertEqual(acquire(), [])
        self.assertTrue(Account.objects.get().has_waiting)

        submit("next", user="ann")
        self.assertIsNone(Ticket.objects.get(task__key="next").timer_at)
        self.assertEqual(keys(acquire()), ["next"])

    def test_the_only_lane_gives_no_credit_for_the_time_in_which_it_was_idle(self):
        finish(running(user="ann")[1], seconds=5.0)
        for number in range(20):
            submit_many(2, user="bob", now=after(number))
            for held in acquire(2, now=after(number)):
                finish(held, seconds=5.0)
        submit_many(20, user="ann")
        submit_many(20, user="bob")
        acquire(1)

        times = dict(Account.objects.values_list("user", "virtual_time"))
        self.assertGreaterEqual(times["ann"], times["bob"] - 10)
        self.assertGreater(times["bob"], 100)

    def test_a_batch_is_full_however_few_short_tasks_each_user_has(self):
        for number in range(100):
            submit(user=f"u{number}")
        store.upkeep.wake_forgotten_lanes(using="default")
        Account.objects.update(cost=0.0001)

        self.assertEqual(len(acquire(90)), 90)
        assert_books_balance(self)

    def test_the_first_measure_takes_the_place_of_the_guess(self):
        """Else it takes twenty tasks until a lane's are known to be short."""
        submit_many(3, user="ann")
        submit_many(2, user="bob")
        held = acquire(5)
        anns = [lease for lease in held if lease.user == "ann"]
        finish(anns[0], seconds=5.0)
        finish(*[lease for lease in held if lease.user == "bob"], seconds=2.0)

        costs = dict(Account.objects.values_list("user", "cost"))
        self.assertAlmostEqual(costs["ann"], 5.0, places=2)
        self.assertAlmostEqual(costs["bob"], 2.0, places=2)

        finish(anns[1], seconds=1.0)
        self.assertAlmostEqual(Account.objects.get(user="ann").cost, 4.0, places=2)

    def test_a_changed_share_holds_for_tasks_that_wait(self):
        share = FairShare.objects.create(user="ann", paused=True)
        submit("k1", user="ann")
        self.assertEqual(acquire(), [])

        share.paused = False
        share.save()
        apply_shares("ann", using="default")
        self.assertEqual(keys(acquire()), ["k1"])

    def test_a_user_who_was_paused_has_saved_no_credit(self):
        """Else it has all processors for as long as it was paused."""
        share = FairShare.objects.create(user="ann", paused=True)
        submit_many(200, user="ann")
        submit_many(200, user="bob")
        for _turn in range(5):
            for held in acquire(20):
                finish(held, seconds=10.0)
        share.paused = False
        share.save()
        apply_shares("ann", using="default")

        users = []
        for _turn in range(5):
            for held in acquire(8):
                users.append(held.user)
                finish(held, seconds=10.0)
        self.assertAlmostEqual(users.count("ann"), 20, delta=5)

    def test_the_queues_own_share_goes_before_the_general_one(self):
        FairShare.objects.create(user="ann", max_running=0)
        FairShare.objects.create(user="ann", queue="urgent", max_running=None)
        submit("k1", user="ann")
        submit("k2", user="ann", queue="urgent")

        self.assertEqual(keys(acquire(5, queues=["default", "urgent"])), ["k2"])


class FinishWithAcquireTests(TestCase):
    def test_returned_tasks_are_closed_in_the_same_transaction(self):
        first, held = running("first")
        submit("second")

        taken, _refused = finish_and_acquire([completion(held, result="1")], worker="w")

        self.assertEqual(keys(taken), ["second"])
        self.assertEqual((status(first), first.metadata().worker), ("finished", "w"))
        assert_books_balance(self)


class StatementTests(TransactionTestCase):
    @tag("thorough")
    def test_users_whose_lanes_ran_dry_are_passed_over_many_at_a_time(self):
        """A lane whose last task filled a batch is awake, and one look-up each is too much."""
        count = 1000
        tasks = ({"key": str(n), "type": "report", "user": f"u{n}"} for n in range(count))
        Queue().submit_many(tasks, now=NOON)
        done, returned = 0, []
        while done < count:
            held, _refused = finish_and_acquire(returned, 100)
            done += len(held)
            returned = [completion(lease, seconds=0.5) for lease in held]
        store.finish(returned, using="default")
        self.assertGreater(Account.objects.filter(has_waiting=True).count(), count // 2)

        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(acquire(1), [])
        self.assertLessEqual(len(queries), 25)
        self.assertFalse(Account.objects.filter(has_waiting=True).exists())
        assert_books_balance(self)


class FreedTests(TransactionTestCase):
    def setUp(self):
        Queue().chain([{"key": key, "type": "report"} for key in ("k0", "k1")])
        [self.lease] = acquire(2, now=None)

    def test_what_waited_for_a_finished_task_is_taken_with_its_end(self):
        taken, refused = finish_and_acquire([completion(self.lease)], 2, now=None)
        self.assertEqual((keys(taken), refused), (["k1"], []))

    def test_where_as_many_ran_as_are_asked_for_others_are_taken_in_one_transaction(self):
        submit("k2", now=None)
        taken, _refused = finish_and_acquire([completion(self.lease)], 1, now=None)
        self.assertEqual(keys(taken), ["k2"])
        self.assertEqual(keys(acquire(1, now=None)), ["k1"])


class ContentionTests(TransactionTestCase):
    def test_lanes_that_others_fill_meanwhile_do_not_hide_the_rest(self):
        """An empty answer means that nothing is due. On SQLite there is one writer at a time."""
        if connection.vendor == "sqlite":
            return
        for number in range(40):
            user = f"u{number:02}"
            FairShare.objects.create(user=user, max_running=1)
            submit_many(2, user=user)
        acquire(8)
        lock = Lanes.lock

        def overtaken(lineup, lanes):
            Lanes.lock = lock
            self.assertEqual(len(elsewhere(lambda: acquire(8))), 8)
            return lock(lineup, lanes)

        with mock.patch.object(Lanes, "lock", overtaken):
            self.assertEqual(len(acquire(8)), 8)
        assert_books_balance(self)


class ClockTests(TransactionTestCase):
    def test_the_servers_clock_is_read_where_no_time_is_given(self):
        Queue().submit("k1", "report", {})
        Queue().submit("k2", "report", {}, run_at=3600)

        self.assertEqual(keys(acquire(5, now=None, lease=3600)), ["k1"])
        for ticket in Ticket.objects.all():
            ticket.timer_at -= timedelta(hours=1)
            ticket.save(update_fields=["timer_at"])
        again = acquire(5, now=None)
        self.assertEqual(sorted(keys(again)), ["k1", "k2"])
