from unittest import mock

from django.db import transaction
from django.db.models import Q
from django.test import TestCase, override_settings

from django_perfectqueue import store
from django_perfectqueue.conf import Options
from django_perfectqueue.exceptions import (
    AlreadyFinishedError,
    NotFoundError,
    NotSupportedError,
    PreemptedError,
)
from django_perfectqueue.inspection.task import tries
from django_perfectqueue.models import Account, Attempt, DeadLetter, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.tasks.close import Loss

from ...factories import (
    MINUTE,
    NOON,
    acquire,
    after,
    assert_books_balance,
    fail,
    failed,
    finish,
    keys,
    retry,
    running,
    settle,
    status,
    submit,
    submit_many,
)


class FinishTests(TestCase):
    def test_finishing_erases_nothing(self):
        task, held = running("k1", user="ann", data={"a": 1}, priority=2)
        finish(held, result='{"rows":3}', seconds=2.0, now=after(5))

        row = task.metadata()
        self.assertEqual((row.status, row.user, row.data), ("finished", "ann", {"a": 1}))
        self.assertEqual((row.result, row.attempt, row.worker), ({"rows": 3}, 1, "tests"))
        self.assertEqual(row.created_at, NOON)
        self.assertAlmostEqual((after(5) - row.ended_at).total_seconds(), 0, delta=0.5)
        self.assertAlmostEqual((row.ended_at - row.started_at).total_seconds(), 2, delta=0.01)

    def test_what_is_cancelled_before_it_begins_teaches_no_cost(self):
        for _number in range(3):
            finish(running(user="ann")[1], seconds=10.0)
        known = Account.objects.get(user="ann").cost
        _task, held = running(user="ann")
        ending = store.Ending.cancel()
        words = store.settle([held], ending, seconds=0.0, using="default", worker="tests")
        self.assertEqual(words, {held: "cancelled"})
        self.assertAlmostEqual(Account.objects.get(user="ann").cost, known)
        assert_books_balance(self)

    def test_a_batch_is_closed_but_for_what_was_lost(self):
        for _number in range(3):
            submit()
        held = acquire(3)
        store.force_finish([held[1].task_id], using="default")

        refused = finish(*held)
        self.assertEqual([done.lease for done in refused], [held[1]])
        self.assertEqual(Task.objects.filter(status="finished").count(), 3)
        assert_books_balance(self)

    def test_a_finish_whose_answer_was_lost_may_be_repeated(self):
        """The commit may have gone through before the connection broke."""
        _task, held = running()
        finish(held)

        self.assertEqual(finish(held), [])

    def test_a_batch_of_large_results_fits_the_servers_statements(self):
        submit_many(20)
        held = acquire(20)

        self.assertEqual(finish(*held, result=f'"{"x" * 900_000}"'), [])
        self.assertEqual(Task.objects.filter(outcome="finished").count(), 20)

    def test_the_lane_is_charged_what_was_measured(self):
        _task, held = running(user="ann")
        finish(held, seconds=7.0)

        self.assertAlmostEqual(Account.objects.get().virtual_time, 7.0)


class RetryTests(TestCase):
    def test_a_retried_task_waits_and_runs_again(self):
        task, held = running()
        retry(held, wait=15)

        self.assertEqual(status(task), "retrying")
        self.assertEqual(acquire(now=after(14)), [])
        [again] = acquire(now=after(15))
        self.assertEqual((again.errors, again.crashes, again.tries), (1, 0, 2))
        assert_books_balance(self)

    def test_what_went_wrong_is_kept(self):
        task, held = running()
        why = store.Failure(error="builtins.ValueError", message="no \x00 rows", traceback="at …")
        retry(held, why=why, seconds=3.0, now=after(10))

        attempt = Attempt.objects.get(task__key=task.key)
        self.assertEqual((attempt.number, attempt.ending), (1, "retried"))
        self.assertEqual((attempt.error, attempt.traceback), ("builtins.ValueError", "at …"))
        self.assertEqual((attempt.started_at, attempt.ended_at), (after(7), after(10)))

    def test_an_error_that_is_no_utf8_is_kept_too(self):
        """A file's name in its message may hold bytes that are no text."""
        task, held = running()
        why = store.Failure.of(OSError("no such file: \udcff\x00"))
        settle(held, store.Ending.fail(why=why), seconds=0.0, using="default", now=NOON)

        self.assertEqual(status(task), "failed")
        self.assertIn("\\udcff", DeadLetter.objects.get().message)

    def test_it_may_go_on_for_ever(self):
        """One that waits for something may be tried again more often than is counted."""
        task, held = running()
        Ticket.objects.update(errors=32_767)
        retry(held)

        self.assertEqual(keys(acquire()), [task.key])


class ReleaseTests(TestCase):
    def test_a_released_task_is_due_at_once_and_counts_no_attempt(self):
        task, held = running()
        self.assertEqual(
            store.settle([held], store.Ending.release(), using="default", now=after(1)),
            {held: "released"},
        )

        self.assertEqual(status(task, now=after(1)), "waiting")
        [again] = acquire(now=after(1))
        self.assertEqual((again.tries, again.attempt), (1, 2))
        assert_books_balance(self)

    def test_it_keeps_its_place_in_line(self):
        submit("first")
        submit("second", now=after(1))
        [held] = acquire(now=after(2))
        store.settle([held], store.Ending.release(), using="default", now=after(3))

        self.assertEqual(keys(acquire(2, now=after(3))), ["first", "second"])

    def test_it_charges_nothing(self):
        _task, held = running(user="ann")
        store.settle([held], store.Ending.release(), using="default", now=NOON)

        self.assertAlmostEqual(Account.objects.get().virtual_time, 0.0)

    def test_it_may_be_delayed(self):
        _task, held = running()
        store.settle([held], store.Ending.release(30), using="default", now=NOON)

        self.assertEqual(acquire(now=after(29)), [])
        self.assertEqual(len(acquire(now=after(30))), 1)


class SnoozeTests(TestCase):
    def test_a_snoozed_task_counts_no_attempt_and_leaves_no_trace(self):
        task, held = running()
        terms = {"seconds": 2.0, "using": "default"}
        self.assertEqual(settle(held, store.Ending.snooze(30), now=after(2), **terms), "snoozed")

        self.assertEqual(status(task, now=after(2)), "scheduled")
        self.assertEqual(acquire(now=after(31)), [])
        [again] = acquire(now=after(32))
        self.assertEqual((again.tries, again.errors, again.attempt), (1, 0, 2))
        self.assertEqual(again.run_at, after(32))
        self.assertFalse(Attempt.objects.exists())
        assert_books_balance(self)

    def test_it_is_scheduled_though_an_attempt_before_it_has_failed(self):
        task, held = running()
        retry(held)
        [again] = acquire()
        settle(again, store.Ending.snooze(30), seconds=0.0, using="default", now=NOON)
        self.assertEqual(status(task), "scheduled")

        [again] = acquire(now=after(30))
        retry(again, wait=30, now=after(30))
        self.assertEqual(status(task, now=after(30)), "retrying")

    def test_it_costs_its_user_what_it_took(self):
        """
        Else who puts off what has run for an hour would have had that for nothing.
        """
        _task, held = running(user="ann")
        settle(held, store.Ending.snooze(30), seconds=7.0, using="default", now=NOON)

        self.assertAlmostEqual(Account.objects.get().virtual_time, 7.0)

    def test_it_ends_where_it_expires_or_is_cancelled(self):
        """
        Nothing else bounds how often a task is put off.
        """
        late, held = running(expires_at=20)
        settle(held, store.Ending.snooze(30), seconds=0.0, using="default", now=NOON)
        self.assertEqual(acquire(now=after(30)), [])
        self.assertEqual(status(late), "expired")

        unwanted, held = running()
        unwanted.cancel_request()
        terms = {"seconds": 0.0, "using": "default", "now": NOON}
        self.assertEqual(settle(held, store.Ending.snooze(30), **terms), "cancelled")
        self.assertEqual(status(unwanted), "cancelled")
        assert_books_balance(self)

    def test_one_that_was_preempted_writes_nothing(self):
        task, held = running()
        task.force_finish()
        with self.assertRaises(PreemptedError):
            settle(held, store.Ending.snooze(30), seconds=0.0, using="default", now=NOON)
        self.assertEqual(status(task), "finished")


class FailTests(TestCase):
    def test_a_failed_task_is_kept_with_its_reason(self):
        task = failed("k1")

        letter = DeadLetter.objects.get()
        self.assertEqual((letter.task.key, letter.status, letter.group), ("k1", "failed", "boom"))
        self.assertEqual((letter.errors, letter.crashes), (1, 0))
        self.assertEqual(status(task), "failed")
        self.assertEqual(Attempt.objects.get().ending, "failed")
        self.assertFalse(Ticket.objects.exists())
        assert_books_balance(self)

    def test_it_is_not_delivered_again(self):
        failed()

        self.assertEqual(acquire(now=after(86_400)), [])


class SecondCallTests(TestCase):
    """What a call may answer that is repeated after a lost connection, another one may not."""

    ENDS = (
        store.Ending.fail(store.Failure()),
        store.Ending.cancel(),
        store.Ending.discard(store.Failure(), store.Failure()),
        store.Ending.retry(0.0, store.Failure()),
        store.Ending.snooze(0.0),
        store.Ending.release(),
    )

    def test_a_second_end_of_an_attempt_is_refused(self):
        for first in self.ENDS:
            for second in self.ENDS:
                _task, held = running()
                self.assertEqual(settle(held, first, seconds=0.0, worker="w"), first.word)
                with self.subTest((first, second)), self.assertRaises(PreemptedError):
                    settle(held, second, seconds=0.0, worker="w")
                Queue().clear()

    def test_of_several_attempts_each_ends_that_is_held(self):
        held = [running()[1] for _number in range(3)]
        Queue()[held[0].key].cancel_request()
        settle(held[1], store.Ending.cancel(), seconds=0.0)

        words = store.settle(held, store.Ending.snooze(30), seconds=1.0, using="default")
        self.assertEqual(words, {held[0]: "cancelled", held[2]: "snoozed"})
        assert_books_balance(self)


class CancelRequestTests(TestCase):
    def test_a_waiting_task_is_cancelled_at_once(self):
        for task in (submit(), submit(run_at=60)):
            self.assertTrue(task.cancel_request(now=NOON))
            self.assertEqual(status(task), "cancelled")
        self.assertEqual(acquire(now=after(99)), [])
        self.assertEqual(DeadLetter.objects.filter(status="cancelled").count(), 2)

    def test_the_holder_of_a_running_task_is_asked(self):
        task, held = running()
        self.assertFalse(task.cancel_request())

        [pulse] = store.leases.heartbeat([held], alive_time=60, using="default", now=after(1))
        self.assertTrue(pulse.held)
        self.assertTrue(pulse.cancel_requested)
        settle(held, store.Ending.cancel(), seconds=1.0, using="default", now=after(1))
        self.assertEqual(status(task), "cancelled")
        assert_books_balance(self)

    def test_a_task_to_be_cancelled_is_not_tried_again(self):
        """Neither by an error, nor by a release, nor because its processor died."""
        ways = {
            "retry": lambda held: retry(held),
            "release": lambda held: store.settle(
                [held], store.Ending.release(), using="default", now=NOON
            ),
            "lapse": lambda held: acquire(now=after(60)),
        }
        for name, leave in ways.items():
            with self.subTest(name):
                task, held = running(name)
                task.cancel_request()
                leave(held)
                self.assertEqual(status(task, now=after(60)), "cancelled")
        assert_books_balance(self)

    def test_what_has_ended_or_never_was_is_listed_apart(self):
        task, held = running("k1")
        finish(held)

        with self.assertRaises(AlreadyFinishedError):
            task.cancel_request()
        with self.assertRaises(NotFoundError):
            task.queue["nobody"].cancel_request()


class ForceFinishTests(TestCase):
    def test_any_live_task_can_be_closed(self):
        scheduled, waiting = submit(run_at=60), submit()
        held_task, held = running()
        for task in (scheduled, waiting, held_task):
            task.force_finish(now=after(1))
            self.assertEqual(status(task), "finished")
        with self.assertRaises(PreemptedError):
            settle(held, store.Ending.fail(why=store.Failure()), seconds=0, using="default")
        assert_books_balance(self)

    def test_only_once(self):
        task = submit()
        task.force_finish()

        with self.assertRaises(AlreadyFinishedError):
            task.force_finish()

    def test_a_refusal_leaves_the_callers_transaction_usable(self):
        task = submit()
        task.force_finish()
        with transaction.atomic():
            with self.assertRaises(AlreadyFinishedError):
                task.force_finish()
            submit("after")

        self.assertTrue(Task.objects.filter(key="after").exists())


class RedriveTests(TestCase):
    def test_a_failed_task_starts_anew(self):
        task = failed("k1")
        task.retry(now=after(5))

        self.assertEqual(status(task, now=after(5)), "waiting")
        self.assertFalse(DeadLetter.objects.exists())
        [held] = acquire(now=after(5))
        self.assertEqual((held.key, held.tries, held.attempt), ("k1", 1, 2))

    def test_the_attempt_before_it_failed_stays_fenced(self):
        _task, old = running("k1")
        fail(old)
        store.steer(store.retry, old.task_id, using="default", now=after(1))
        [new] = acquire(now=after(1))

        self.assertEqual(len(finish(old)), 1)
        self.assertEqual(finish(new), [])

    def test_cancelled_and_expired_tasks_can_be_put_back(self):
        cancelled = submit()
        cancelled.cancel_request()
        expired = submit(expires_at=1)
        acquire(now=after(1))

        for task in (cancelled, expired):
            task.retry(now=after(9))
        self.assertEqual(len(acquire(5, now=after(9))), 2)

    def test_a_cancelled_task_keeps_a_time_that_is_to_come(self):
        scheduled = [submit(key, run_at=MINUTE) for key in ("k1", "k2")]
        child = submit("child", run_at=MINUTE, after=["k1"])
        due = submit("due", run_at=1)
        for task in (child, *scheduled, due):
            task.cancel_request(now=after(1))
        for task in (*scheduled, child, due):
            task.retry(now=after(2))

        self.assertEqual(keys(acquire(5, now=after(2))), ["due"])
        self.assertEqual(status(scheduled[0], now=after(2)), "scheduled")
        scheduled[1].retry(now=after(3))
        self.assertEqual(keys(acquire(5, now=after(3))), ["k2"])
        [held] = acquire(5, now=after(60))
        finish(held, now=after(60))
        self.assertEqual(keys(acquire(5, now=after(61))), ["child"])

    def test_a_task_that_was_tried_before_its_time_is_put_back_at_once(self):
        hastened = submit("k1", run_at=MINUTE)
        hastened.retry(now=after(1))
        [held] = acquire(now=after(1))
        fail(held, now=after(1))
        hastened.retry(now=after(2))

        self.assertEqual(keys(acquire(now=after(2))), ["k1"])

    def test_a_retrying_task_is_hastened(self):
        task, held = running()
        retry(held, wait=3600)
        task.retry(now=after(1))

        self.assertEqual(len(acquire(now=after(1))), 1)

    def test_what_needs_no_retry_says_so(self):
        held_task, held = running()
        waiting = submit()
        with self.assertRaises(NotSupportedError):
            waiting.retry()
        with self.assertRaises(NotSupportedError):
            held_task.retry()
        finish(held)
        with self.assertRaises(AlreadyFinishedError):
            held_task.retry()


class HeartbeatTests(TestCase):
    def test_it_renews_every_lease_of_a_holder(self):
        for _number in range(3):
            submit()
        held = acquire(3)
        pulses = store.leases.heartbeat(held, alive_time=60, using="default", now=after(30))

        self.assertTrue(all(pulse.held for pulse in pulses))
        self.assertEqual(acquire(3, now=after(89)), [])
        self.assertEqual(len(acquire(3, now=after(90))), 3)

    def test_looking_renews_nothing(self):
        _task, held = running()
        [pulse] = store.leases.heartbeat([held], alive_time=None, using="default", now=after(30))

        self.assertTrue(pulse.held)
        self.assertEqual(len(acquire(now=after(60))), 1)

    def test_a_lapsed_lease_that_no_one_took_can_be_renewed(self):
        """The holder was slow, but nothing has been given away yet."""
        _task, held = running()
        [pulse] = store.leases.heartbeat(
            [held], alive_time=60, using="default", now=NOON + 2 * MINUTE
        )

        self.assertTrue(pulse.held)
        self.assertEqual(acquire(now=NOON + 2 * MINUTE), [])

    def test_one_that_comes_late_shortens_nothing(self):
        _task, held = running()
        store.leases.heartbeat([held], alive_time=60, using="default", now=after(30))

        [pulse] = store.leases.heartbeat([held], alive_time=60, using="default", now=after(10))

        self.assertTrue(pulse.held)
        self.assertEqual(acquire(now=after(89)), [])

    def test_the_ended_are_not_held(self):
        task, held = running()
        task.force_finish()

        [pulse] = store.leases.heartbeat([held], alive_time=60, using="default")
        self.assertFalse(pulse.held)


class UpdatePayloadTests(TestCase):
    def test_the_holder_can_change_what_the_task_carries(self):
        task, held = running(data={"a": 1}, type="report")
        store.update_payload(held, '{"a":2}', alive_time=60, using="default", now=after(30))

        self.assertEqual((task.metadata().data, task.metadata().type), ({"a": 2}, "report"))
        self.assertEqual(acquire(now=after(89)), [])


class GiveBackTests(TestCase):
    why = store.Failure(error="died", message="The processor was killed.")

    def give_back(self, holder, crashed=(), **options):
        loss = Loss(why=self.why, crashed=crashed)
        return store.upkeep.give_back(
            holder, using="default", alive_time=60, loss=loss, now=after(1), **options
        )

    def test_what_a_dead_processor_held_is_due_at_once(self):
        for _number in range(3):
            submit()
        held = acquire(3, holder=7)

        self.assertEqual(self.give_back(7, crashed=[held[0].task_id]), 3)
        again = {lease.task_id: lease for lease in acquire(3, now=after(1))}
        self.assertEqual([again[lease.task_id].crashes for lease in held], [1, 0, 0])
        self.assertEqual(Attempt.objects.get().message, "The processor was killed.")
        assert_books_balance(self)

    def test_what_was_to_be_cancelled_is(self):
        begun, unbegun = submit(), submit()
        held = acquire(2, holder=7)
        for task in (begun, unbegun):
            task.cancel_request()

        self.give_back(7, crashed=[held[0].task_id])
        self.assertEqual([status(begun), status(unbegun)], ["cancelled", "cancelled"])
        assert_books_balance(self)

    def test_other_holders_keep_theirs(self):
        submit()
        acquire(holder=8)

        self.assertEqual(self.give_back(7), 0)
        self.assertEqual(acquire(now=after(1)), [])

    def test_what_is_still_worked_on_may_be_kept(self):
        """So a processor gives up acquires whose answer it never got."""
        for _number in range(2):
            submit()
        known, _unknown = acquire(2, holder=7)

        self.assertEqual(self.give_back(7, keep=[known.fence]), 1)
        self.assertEqual(finish(known), [])

    @override_settings(PERFECTQUEUE={"MAX_CRASHES": 10**6})
    def test_crashes_are_counted_as_far_as_a_column_goes(self):
        for key in ("again", "cancelled"):
            submit(key)
            Ticket.objects.update(crashes=32_767)
            [lease] = acquire()
            if key == "cancelled":
                Queue()[key].cancel_request()
            self.give_back(lease.holder, crashed=[lease.task_id])
        self.assertEqual(Ticket.objects.get().crashes, 32_767)
        self.assertEqual(DeadLetter.objects.get().crashes, 32_767)


class ClearTests(TestCase):
    def test_it_forgets_one_queue_and_all_of_it(self):
        failed("k1")
        running("k2")
        submit("k3")
        other = submit("k1", queue="other")

        self.assertEqual(other.queue.clear(), 1)
        self.assertEqual(store.upkeep.clear(Q(queue="default"), using="default"), (3, set()))
        for model in (Task, Ticket, Attempt, DeadLetter):
            self.assertFalse(model.objects.exists(), model)
        assert_books_balance(self)


@mock.patch.object(Options, "ATTEMPTS_KEPT", 4)
class HistoryTests(TestCase):
    """A task that is tried again and again has as many rows as one that is tried a few times."""

    def tried(self, times):
        task = submit("k1")
        for number in range(times):
            [held] = acquire()
            retry(held, why=store.Failure(error=f"error {number + 1}"))
            store.schedules.fire_due_timers(using="default", now=NOON)
        return task

    def test_the_first_and_the_last_attempts_are_kept(self):
        self.tried(12)
        rows = list(Attempt.objects.values_list("number", "error", "omitted"))
        expected = [(1, 0), (2, 0), (11, 8), (12, 0)]
        self.assertEqual(rows, [(n, f"error {n}", omitted) for n, omitted in expected])

    def test_all_are_counted_and_numbered(self):
        task = self.tried(12)
        row = Task.objects.with_tries().get()
        self.assertEqual(row.tries, 12)
        reported = tries(row, list(row.attempts.order_by("id")))
        self.assertEqual([one.number for one in reported], [1, 2, 11, 12])
        finish(*acquire())
        self.assertEqual(Task.objects.with_tries().get().tries, 13)
        last = tries(task.metadata(), list(row.attempts.order_by("id")))[-1]
        self.assertEqual((last.number, last.row.ending), (13, "finished"))

    def test_a_few_attempts_are_all_kept(self):
        self.tried(4)
        self.assertEqual([row.omitted for row in Attempt.objects.all()], [0, 0, 0, 0])

    def test_lost_ones_and_those_before_a_redrive_count_too(self):
        task = self.tried(3)
        for round_ in range(3):
            acquire(lease=1)
            store.schedules.fire_due_timers(using="default", now=after(9))
            [held] = acquire(now=after(9e3 * (round_ + 1)))
            fail(held, now=after(9e3 * (round_ + 1)))
            task.retry(now=NOON)
        self.assertEqual(Attempt.objects.count(), 4)
        self.assertEqual(Task.objects.with_tries().get().tries, 9)
