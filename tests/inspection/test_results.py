import asyncio
import threading
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from unittest import mock, skipUnless

from asgiref.sync import async_to_sync, sync_to_async
from django.db import DatabaseError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from django_perfectqueue import store
from django_perfectqueue.exceptions import (
    NotFoundError,
    TaskCancelledError,
    TaskExpiredError,
    TaskFailedError,
    TimeLimitError,
    WaitInTransactionError,
    WaitTimeoutError,
)
from django_perfectqueue.inspection import results
from django_perfectqueue.models import Task, Ticket
from django_perfectqueue.queue import Queue

from ..factories import (
    acquire,
    after,
    completion,
    elsewhere,
    fail,
    failed,
    finish,
    finish_and_acquire,
    running,
    settle,
    submit,
)
from ..waiting import LONG, wait_until

DATABASE = "django_perfectqueue.store.database.transaction"

POSTGRESQL = skipUnless(connection.vendor == "postgresql", "Only PostgreSQL tells of ends.")


class EndedTests(TestCase):
    """What has ended is shown at once, in a transaction as well."""

    def test_what_the_handler_returned_is_returned(self):
        for number, result in enumerate(({"rows": [1]}, "ü", 0, None)):
            task = submit(f"k{number}")
            Queue().poll(now=after(1)).finish(result)
            self.assertEqual(task.wait(), result)

    def test_a_failed_task_raises_with_the_error_of_its_handler(self):
        task, held = running()
        fail(held, error="ValueError", message="no rows")

        with self.assertRaisesMessage(TaskFailedError, "is failed. ValueError: no rows") as caught:
            task.wait()
        error = caught.exception
        reported = (error.key, error.status, error.error, error.message)
        self.assertEqual(reported, (task.key, "failed", "ValueError", "no rows"))

    def test_a_cancelled_task_and_one_that_expired_raise_a_kind_of_that(self):
        task = submit()
        task.cancel_request()
        with self.assertRaises(TaskCancelledError) as caught:
            task.wait()
        self.assertIsInstance(caught.exception, TaskFailedError)
        task = submit(expires_at=after(1))
        acquire(now=after(2))
        with self.assertRaises(TaskExpiredError) as caught:
            task.wait()
        self.assertEqual(caught.exception.status, "expired")

    def test_a_task_that_is_not_there_is_not_waited_for(self):
        submit("k1")
        with self.assertRaisesMessage(NotFoundError, "'nobody'"):
            Queue()["nobody"].wait()
        with self.assertRaisesMessage(NotFoundError, "'a', 'b'"):
            list(Queue().as_completed(["k1", "a", "b"]))

    def test_no_time_at_all_looks_once(self):
        task = submit()
        for nothing in (0, 0.0, timedelta()):
            with self.assertRaisesMessage(WaitTimeoutError, f"'{task.key}'") as caught:
                task.wait(nothing)
            self.assertIsInstance(caught.exception, TimeoutError)

    def test_waiting_in_a_transaction_is_refused_instead_of_hanging(self):
        task = submit()
        with self.assertRaisesMessage(WaitInTransactionError, "may never be seen") as caught:
            task.wait(timeout=LONG)
        self.assertIsInstance(caught.exception, TransactionManagementError)
        with self.assertRaises(WaitInTransactionError):
            async_to_sync(task.wait_async)()
        finish(*acquire())
        self.assertIsNone(task.wait(timeout=LONG))

    def test_a_time_that_is_none_is_refused(self):
        for wrong in (-1, "soon", float("nan"), [], True):
            with self.subTest(wrong), self.assertRaisesMessage(ValueError, "timeout must be"):
                submit().wait(wrong)

    def test_a_single_key_is_no_list_of_keys(self):
        with self.assertRaisesMessage(ValueError, "must be a list of names, not 'k1'"):
            Queue().as_completed("k1")

    def test_several_are_reported_by_one_statement_a_look(self):
        done = [submit() for _number in range(3)]
        finish(*acquire(3), result='"x"')
        dead = failed()
        with self.assertNumQueries(3):
            reported = list(Queue().as_completed([task.key for task in (*done, dead)]))
        self.assertEqual(
            {end.key: end.status for end in reported},
            {dead.key: "failed", **{task.key: "finished" for task in done}},
        )
        self.assertEqual([end.result() for end in reported if end.status == "finished"], ["x"] * 3)

    def test_a_key_is_text_whatever_was_given(self):
        submit("7")
        finish(*acquire())
        self.assertEqual([end.key for end in Queue().as_completed([7])], ["7"])

    def test_one_that_was_put_back_between_the_two_looks_is_still_waited_for(self):
        task = submit()
        waiter = results.ResultWaiter("default", [task.key], using="default", timeout=None)
        with mock.patch.object(store.notify, "live", return_value={}):
            self.assertEqual(waiter.look(), [])
        self.assertEqual(waiter.keys, [task.key])

    def test_more_than_one_statement_can_take_are_found(self):
        with mock.patch.multiple(DATABASE, UNITED=2, LISTED=3):
            keys = [submit().key for _number in range(5)]
            finish(*acquire(5))
            with self.assertNumQueries(3 + 2 + 2):
                self.assertEqual({end.key for end in Queue().as_completed(keys)}, set(keys))


def taken():
    """Acquire a task; who begins to wait for it has its ticket for a moment."""
    found = []
    wait_until(lambda: found.extend(acquire()) or found)
    return found


class WaitingTests(TransactionTestCase):
    def test_who_waits_gets_the_result_when_there_is_one(self):
        task = submit()
        with waiting(task, timeout="1h") as answers:
            [held] = taken()
            finish(held, result="[7]")
        self.assertEqual(answers, [[7]])

    def test_who_waits_is_notified_that_it_failed(self):
        task = submit()
        with waiting(task) as answers:
            [held] = taken()
            fail(held, message="no rows")
        self.assertEqual([type(answer) for answer in answers], [TaskFailedError])

    def test_who_waits_for_too_long_is_notified_and_the_task_goes_on(self):
        task = submit()
        with self.assertRaisesMessage(WaitTimeoutError, "after 0.1 s"):
            task.wait(0.1)
        self.assertEqual(Task.objects.get().status, "waiting")

    def test_a_task_that_takes_the_key_is_waited_for(self):
        task = submit("k1")
        with waiting(task) as answers:
            submit("k1", on_conflict="replace")
            [held] = acquire()
            finish(held, result='"new"')
        self.assertEqual(answers, ["new"])

    def test_a_task_that_is_deleted_meanwhile_is_not_waited_for(self):
        task = submit("k1")
        with waiting(task) as answers:
            Queue().clear()
        self.assertEqual([type(answer) for answer in answers], [NotFoundError])

    def test_several_come_in_the_order_in_which_they_end(self):
        keys = [submit(f"k{number}").key for number in range(3)]
        order = []
        with closing(Queue().as_completed(keys, timeout=LONG)) as reported:
            for lease in reversed(acquire(3)):
                finish(lease)
                order.append((lease.key, next(reported).key))
            self.assertEqual(list(reported), [])
        self.assertEqual(
            [ended for ended, _reported in order], [reported for _ended, reported in order]
        )

    def test_a_coroutine_waits_without_holding_up_the_loop(self):
        task = submit()

        async def story():
            answer = asyncio.create_task(task.wait_async(LONG))
            while not answer.done():
                await sync_to_async(lambda: finish(*acquire(), result='"yes"'))()
                await asyncio.sleep(0.01)
            return answer.result(), [
                end.key async for end in Queue().as_completed_async([task.key])
            ]

        self.assertEqual(async_to_sync(story)(), ("yes", [task.key]))


@contextmanager
def waiting(task, *, timeout=LONG):
    """Have a thread wait for a task, and begin when it has looked once; end when it has."""
    answers, looked = [], threading.Event()

    class ResultWaiter(results.ResultWaiter):
        def wait(self):
            looked.set()
            super().wait()

    def wait():
        try:
            answers.append(task.wait(timeout))
        except Exception as error:
            answers.append(error)
        finally:
            connections.close_all()

    with mock.patch.object(results, "ResultWaiter", ResultWaiter):
        thread = threading.Thread(target=wait)
        thread.start()
        try:
            assert looked.wait(LONG), "It has not looked."
            yield answers
        finally:
            thread.join(LONG)
    assert not thread.is_alive(), "It waits for ever."


ENDS = {
    "finished": (submit, lambda task, leases: finish(*leases)),
    "finished with the next acquire": (
        submit,
        lambda task, leases: finish_and_acquire([completion(lease) for lease in leases]),
    ),
    "failed": (submit, lambda task, leases: fail(*leases)),
    "cancelled": (submit, lambda task, leases: settle(*leases, store.Ending.cancel(), seconds=0.0)),
    "forced": (submit, lambda task, leases: task.force_finish()),
    "lost": (submit, lambda task, leases: acquire(now=after(3600))),
    "cancelled before": (lambda: submit(), lambda task, leases: task.cancel_request()),
    "expired": (lambda: submit(expires_at=after(1)), lambda task, leases: acquire(now=after(2))),
    "replaced": (lambda: submit(), lambda task, leases: submit(task.key, on_conflict="replace")),
}


@POSTGRESQL
class TellingTests(TransactionTestCase):
    """
    PostgreSQL notifies who waits; its own connection hears that with the answer to its commit.
    """

    def heard(self, task, *verbs, watched=True):
        listener = store.notify.end_listener("default")
        self.addCleanup(listener.close)
        listener.open(store.notify.end_channels([task.id]))
        if watched:
            store.notify.watch([task.id], using="default")
        for verb in verbs:
            self.assertFalse(listener.take(), verb)
            verb()
        return listener.take()

    def test_every_end_that_is_watched_is_reported(self):
        for name, (begin, end) in ENDS.items():
            with self.subTest(name), override_settings(PERFECTQUEUE={"MAX_CRASHES": 1}):
                task = begin()
                leases = acquire() if begin is submit else []
                self.assertTrue(self.heard(task, partial(end, task, leases)))
                Queue().clear()

    def test_an_end_that_no_one_waits_for_is_not_reported(self):
        for several in (False, True):
            task, lease = running(now=None)
            leases = [lease, running(now=None)[1]] if several else [lease]
            self.assertFalse(self.heard(task, lambda held=leases: finish(*held), watched=False))
        self.assertFalse(self.heard(submit("k1"), Queue()["k1"].cancel_request, watched=False))

    def test_a_retry_is_no_end_and_the_last_attempt_is_reported_yet(self):
        task, lease = running(now=None)
        again = store.Ending.retry(0.0, store.Failure())
        self.assertTrue(
            self.heard(
                task,
                lambda: settle(lease, again, seconds=0.0),
                lambda: finish(*acquire(now=None), now=None),
            )
        )

    def test_who_waits_hears_it_long_before_it_would_look(self):
        task = submit(now=None)
        slow = mock.patch.object(results, "BOUNDS_IF_NOTIFIED", (600.0, 600.0))
        with slow, waiting(task, timeout=600) as answers:
            wait_until(lambda: Ticket.objects.get().watched)
            finish(*acquire(now=None), now=None, result="1")
        self.assertEqual(answers, [1])

    def test_an_end_just_before_it_listens_is_seen_at_once(self):
        task, real = submit(now=None), store.notify.ChannelListener.open

        def late(listener, ids):
            elsewhere(lambda: finish(*acquire(now=None), now=None, result="1"))
            real(listener, ids)

        waits = mock.patch.object(
            store.notify.ChannelListener, "wait", side_effect=AssertionError("It waits.")
        )
        with waits, mock.patch.object(store.notify.ChannelListener, "open", late):
            self.assertEqual(task.wait(timeout=LONG), 1)

    def test_one_that_comes_back_is_watched_again(self):
        task = failed()
        waiter = results.ResultWaiter("default", [task.key], using="default", timeout=None)
        self.addCleanup(waiter.close)
        Queue()[task.key].retry()
        for _time in range(2):
            Ticket.objects.update(watched=False)
            waiter.look()
            waiter.listen()
            self.assertTrue(Ticket.objects.get().watched)

    def test_a_handler_that_waits_can_be_broken_off(self):
        task = submit(now=None)
        for name in ("is_readable", "ChannelListener.receive"):
            reason = TimeLimitError("It has run for too long.")
            target = f"django_perfectqueue.store.notify.postgres.{name}"
            with (
                self.subTest(name),
                mock.patch(
                    "django_perfectqueue.store.notify.postgres.is_readable", return_value=True
                ),
                mock.patch(target, side_effect=reason),
                self.assertRaises(TimeLimitError),
            ):
                task.wait(LONG)

    def test_where_no_end_can_be_watched_nothing_is_listened_for(self):
        task = submit(now=None)
        with (
            mock.patch.object(
                store.notify, "watch", side_effect=DatabaseError("permission denied")
            ),
            self.assertRaises(WaitTimeoutError),
        ):
            task.wait(0.05)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_listening_channels()")
            self.assertEqual(cursor.fetchall(), [])

    def test_a_connection_that_breaks_is_made_anew(self):
        task, pids, real = submit(now=None), [], store.notify.ChannelListener.wait

        def wait(listener, seconds):
            pids.append(listener.listening.info.backend_pid)
            real(listener, seconds)

        with (
            mock.patch.object(store.notify.ChannelListener, "wait", wait),
            waiting(task) as answers,
        ):
            wait_until(lambda: pids)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s)", [pids[0]])
            wait_until(lambda: len(set(pids)) > 1)
            finish(*acquire(now=None), now=None, result="1")
        self.assertEqual(answers, [1])

    def test_a_task_that_is_locked_for_long_is_passed_over(self):
        task = submit()
        with transaction.atomic():
            Ticket.objects.select_for_update().get()
            elsewhere(lambda: store.notify.watch([task.id], using="default"))
        self.assertFalse(Ticket.objects.get().watched)

    def test_what_others_listen_for_on_the_connection_is_left_to_them(self):
        heard = []
        with connection.cursor() as cursor:
            cursor.execute("LISTEN others")
        driver = connection.connection
        if hasattr(driver, "add_notify_handler"):
            driver.add_notify_handler(lambda notice: heard.append(notice.channel))
        task, lease = running(now=None)
        with connection.cursor() as cursor:
            reported = self.heard(
                task,
                lambda: cursor.execute("SELECT pg_notify('others', 'x')"),
                lambda: finish(lease, now=None),
            )
        self.assertTrue(reported)
        if not hasattr(driver, "add_notify_handler"):
            heard += [notice.channel for notice in driver.notifies]
        self.assertEqual(heard[:1], ["others"])

    def test_without_the_bell_or_behind_a_pooler_no_end_is_reported(self):
        self.assertIsNotNone(store.notify.end_listener("default"))
        with override_settings(PERFECTQUEUE={"NOTIFY": False}):
            self.assertIsNone(store.notify.end_listener("default"))
        pooled = {"DISABLE_SERVER_SIDE_CURSORS": True}
        with mock.patch.dict(connection.settings_dict, pooled):
            self.assertIsNone(store.notify.end_listener("default"))

    def test_the_connection_listens_for_nothing_once_the_wait_is_over(self):
        task = submit(now=None)
        with self.assertRaises(WaitTimeoutError):
            task.wait(0.05)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_listening_channels()")
            self.assertEqual(cursor.fetchall(), [])


class PauseTests(SimpleTestCase):
    def pauses(self, waited, *, timeout=None, reported=False):
        waiter = mock.Mock(since=0.0, timeout=timeout, are_watched=reported)
        with mock.patch.object(results.time, "monotonic", return_value=waited):
            return results.ResultWaiter.pause(waiter)

    def test_it_looks_after_a_tenth_of_what_it_has_waited(self):
        waits = {0.0: 0.02, 1.0: 0.1, 4.0: 0.4, 100.0: 0.5}
        self.assertEqual({waited: self.pauses(waited) for waited in waits}, waits)

    def test_it_looks_less_often_where_it_would_be_reported(self):
        waits = {0.0: 0.5, 10.0: 1.0, 100.0: 5.0}
        self.assertEqual({waited: self.pauses(waited, reported=True) for waited in waits}, waits)

    def test_it_waits_no_longer_than_it_was_asked_to(self):
        self.assertAlmostEqual(self.pauses(9.9, timeout=10.0, reported=True), 0.1)
        self.assertEqual(self.pauses(11.0, timeout=10.0), 0.0)
