import logging
import signal
import threading
from contextlib import contextmanager
from unittest import mock

from django.db import OperationalError, connection, connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings

from django_perfectqueue import signals, store
from django_perfectqueue.application import Application
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    GracefulProcessStopError,
    InvalidResultError,
    PreemptedError,
)
from django_perfectqueue.logs import TaskContext
from django_perfectqueue.models import Attempt, FairShare, Task, Ticket
from django_perfectqueue.payload.context import STARS
from django_perfectqueue.queue import Queue

from ... import tasks
from ...factories import submit
from ..runners import RunnerMixin, runner_for


@contextmanager
def reported_in(log):
    """Add the task to the records that are caught."""
    [handler] = logging.getLogger().handlers
    handler.addFilter(TaskContext())
    yield


class OutcomeTests(RunnerMixin, TestCase):
    def test_what_a_handler_returns_is_the_result(self):
        row = self.run_with(lambda task: {"seen": task.data}, data={"a": 1}, expect="finished")
        self.assertEqual((row.status, row.result), ("finished", {"seen": {"a": 1}}))

    def test_an_unwilling_handler_finishes_its_task(self):
        self.assertEqual(self.run_with(tasks.Hesitant).status, "finished")

    def test_a_handler_may_settle_its_task_itself(self):
        def perform(task):
            task.finish("by itself")
            return "too late"

        row = self.run_with(perform, expect="finished")
        self.assertEqual(row.result, "by itself")
        self.assertIsNone(self.ending.completion)

    def test_an_error_after_the_task_was_settled_changes_nothing(self):
        def perform(task):
            task.finish("done")
            raise ValueError("too late")

        with self.assertLogs("django_perfectqueue.runner", "ERROR") as log:
            row = self.run_with(perform, expect="finished")
        self.assertEqual(row.result, "done")
        self.assertIn("raised after its task was finished", log.output[0])

    def test_an_error_has_the_task_tried_again(self):
        row = self.run_with(self.fail_with(ValueError("boom")), expect="retried")
        self.assertEqual(row.status, "retrying")
        self.assertIn("ValueError: boom", Attempt.objects.get().traceback)

    def test_a_traceback_begins_in_the_handler(self):
        """
        How the worker has called it is of no interest to who wrote it.
        """

        def perform(task):
            return 1 / 0

        with self.assertLogs("django_perfectqueue.runner", "WARNING") as log:
            self.run_with(perform, expect="retried")
        for reported in (log.output[0], Attempt.objects.get().traceback):
            self.assertIn("in perform\n    return 1 / 0", reported)
            self.assertEqual(reported.count("  File "), 1, reported)

    def test_a_traceback_without_a_handler_stays_whole(self):
        """
        What the worker itself has raised must be found, too.
        """

        class Strange(Application):
            pass

        self.run_with(Strange, expect="retried")
        self.assertIn("/application/base.py", Attempt.objects.get().traceback)

    def test_what_is_sensitive_is_not_logged_with_an_error(self):
        """
        The record still has the exception, for those who report errors.
        """
        error = ValueError("no hunter22")
        perform = self.fail_with(error)
        with self.assertLogs("django_perfectqueue.runner", "WARNING") as log:
            self.run_with(perform, data={"password": "hunter22"}, expect="retried")
        self.assertIn(f"ValueError: no {STARS}", log.output[0])
        self.assertNotIn("hunter22", log.output[0])
        self.assertIs(log.records[0].exc_info[1], error)
        self.assertEqual(Attempt.objects.get().message, f"no {STARS}")

    def test_what_a_handler_raises_when_it_is_asked_to_end_has_stars_as_well(self):
        class Stubborn(Application):
            def kill(self, reason):
                raise ValueError("no hunter22")

            def perform(self):
                runner.running.kill(CancelRequestedError("Now."))

        submit("task", data={"password": "hunter22"}, now=None)
        runner = runner_for(Stubborn)
        self.addCleanup(runner.wakeup.close)
        with self.assertLogs("django_perfectqueue.runner", "ERROR") as log:
            runner.run(Queue().poll())
        self.assertIn(f"ValueError: no {STARS}", log.output[0])
        self.assertNotIn("hunter22", log.output[0])

    @override_settings(PERFECTQUEUE={"MAX_ATTEMPTS": 1})
    def test_the_last_error_fails_it_and_is_logged(self):
        with self.assertLogs("django_perfectqueue.runner", "ERROR") as log:
            row = self.run_with(self.fail_with(ValueError("boom")), expect="failed")
        self.assertEqual(row.status, "failed")
        self.assertIn("ValueError: boom", log.output[0])

    def test_what_is_logged_meanwhile_can_tell_the_task(self):
        def perform(task):
            logging.getLogger("shop").warning("Here.")
            raise ValueError("boom")

        with self.assertLogs(level="INFO") as log, reported_in(log):
            self.run_with(perform, expect="retried")
            logging.getLogger("shop").warning("There.")
        reported = [(one.name, one.levelname, one.pq_key, one.pq_attempt) for one in log.records]
        self.assertEqual(
            reported,
            [
                ("shop", "WARNING", "task", 1),
                ("django_perfectqueue.runner", "WARNING", "task", 1),
                ("shop", "WARNING", "", ""),
            ],
        )
        self.assertIn("ValueError: boom", log.output[1])

    def test_what_would_end_a_program_is_an_error_like_others(self):
        """
        It must not cost a processor, nor come back for ever without an attempt that counts.
        """
        for error in (SystemExit(0), KeyboardInterrupt()):
            with self.subTest(type(error)):
                row = self.run_with(self.fail_with(error), expect="retried")
                self.assertFalse(self.ending.stop)
                self.assertEqual(row.ticket.errors, 1)
                Queue().clear()

    def test_a_stop_that_escapes_gives_the_task_back_and_stops_the_processor(self):
        row = self.run_with(self.fail_with(GracefulProcessStopError()), expect="released")
        self.assertTrue(self.ending.stop)
        self.assertEqual(row.ticket.errors, 0)

    def test_a_cancel_that_was_asked_for_cancels(self):
        def perform(task):
            Queue()[task.key].cancel_request()
            task.heartbeat()

        self.assertEqual(self.run_with(perform, expect="cancelled").status, "cancelled")

    def test_a_cancel_that_nobody_asked_for_is_an_error(self):
        self.run_with(self.fail_with(CancelRequestedError()), expect="retried")

    def test_an_error_of_a_task_that_is_to_be_cancelled_cancels_it(self):
        def perform(task):
            Queue()[task.key].cancel_request()
            raise ValueError("boom")

        self.assertEqual(self.run_with(perform, expect="cancelled").status, "cancelled")

    def test_a_preempted_handler_writes_nothing(self):
        def perform(task):
            Queue()[task.key].force_finish()
            task.heartbeat()

        with self.assertLogs("django_perfectqueue.runner", "WARNING"):
            row = self.run_with(perform, expect="preempted")
        self.assertEqual((row.status, row.result), ("finished", None))

    def test_an_error_of_a_preempted_handler_writes_nothing(self):
        def perform(task):
            Queue()[task.key].force_finish()
            raise ValueError("boom")

        with self.assertLogs("django_perfectqueue.runner", "WARNING"):
            self.run_with(perform, expect="preempted")
        self.assertFalse(Attempt.objects.exists())

    def test_a_payload_that_is_broken_fails_with_the_reason(self):
        submit("broken", now=None)
        Task.objects.filter(key="broken").update(payload="{")
        task = Queue().poll()
        runner = runner_for(lambda task: task.data)
        self.addCleanup(runner.wakeup.close)
        with self.assertLogs("django_perfectqueue.runner", "ERROR"):
            runner.run(task)
        row = Queue()["broken"].metadata()
        self.assertEqual(row.status, "failed")
        self.assertIn("not JSON", row.dead_letter.message)

    def test_a_result_that_can_not_be_stored_fails_the_task_at_once(self):
        """
        The handler has done its work: done again, it would only return the same.
        """
        for settings, result, problem in (
            ({}, {1, 2}, "The result can't be written as JSON"),
            ({"MAX_RESULT_SIZE": 10}, "x" * 9, "at most 10 bytes as JSON, by MAX_RESULT_SIZE"),
            ({"MAX_PAYLOAD_SIZE": 10}, "x" * 9, "at most 10 bytes as JSON, by MAX_PAYLOAD_SIZE"),
        ):
            with (
                override_settings(PERFECTQUEUE=settings),
                self.assertLogs("django_perfectqueue.runner", "ERROR") as log,
            ):
                row = self.run_with(lambda task, result=result: result, expect="failed")
            [record] = log.records
            self.assertIn(problem, record.getMessage())
            self.assertIsNone(record.exc_info)
            self.assertEqual(row.status, "failed")
            self.assertIn(problem, row.dead_letter.message)
            self.assertTrue(row.dead_letter.group.endswith(".InvalidResultError"))
            Queue().clear()

    def test_a_handler_may_finish_with_something_shorter_instead(self):
        def perform(task):
            try:
                task.finish("x" * 20)
            except InvalidResultError:
                task.finish("short")

        settings = {"MAX_RESULT_SIZE": 10, "MAX_PAYLOAD_SIZE": 100}
        with override_settings(PERFECTQUEUE=settings):
            row = self.run_with(perform, data={"long": "x" * 20}, expect="finished")
        self.assertEqual(row.result, "short")

    def test_a_handler_without_auto_finish_leaves_its_task_held(self):
        with self.assertLogs("django_perfectqueue.runner", "WARNING") as log:
            row = self.run_with(tasks.Unsettled, expect="left")
        self.assertEqual(row.status, "running")
        self.assertIn("without settling", log.output[0])

    def test_an_unknown_type_waits_and_counts_no_attempt(self):
        submit("strange", type="strange", now=None)
        runner = runner_for(tasks.report)
        self.addCleanup(runner.wakeup.close)
        runner.run(Queue().poll())

        row = Queue()["strange"].metadata()
        self.assertEqual((row.status, row.ticket.errors), ("scheduled", 0))

    def test_an_error_in_the_handlers_init_is_an_error_like_others(self):
        class Fragile(Application):
            def __init__(self, task):
                raise ValueError("boom")

        self.run_with(Fragile, expect="retried")

    def fail_with(self, error):
        def perform(task):
            raise error

        return perform


class DeciderTests(RunnerMixin, TestCase):
    def test_a_decider_may_decide_otherwise(self):
        row = self.run_with(tasks.Lenient, expect="finished")
        self.assertEqual(row.result, {"skipped": "as it should"})

    def test_a_decider_that_raises_leaves_it_to_the_policy(self):
        """
        In the ancestor this ended the processor, and hid the error that began it.
        """
        with self.assertLogs("django_perfectqueue.runner", "ERROR") as log:
            self.run_with(tasks.Undecided, expect="retried")
        self.assertIn("the decider has an error too", log.output[0])
        self.assertEqual(Attempt.objects.get().message, "as it should")

    def test_a_decider_that_settles_nothing_leaves_it_to_the_policy(self):
        class Idle(tasks.Decider):
            def unexpected_error_raised(self, error):
                pass

        class Fail(Application):
            decider = Idle

            def perform(self):
                raise ValueError("boom")

        self.run_with(Fail, expect="retried")

    def test_an_error_that_can_not_be_reported_is_still_written(self):
        """
        A broken __str__, or text that no database takes, must not have the task lost.
        """

        class MuteError(Exception):
            def __str__(self):
                raise RuntimeError("no words")

        for error in (MuteError(), ValueError("\ud800 \x00")):
            with self.subTest(type(error).__name__), transaction.atomic():
                with self.assertLogs("django_perfectqueue.runner") as _log:
                    self.run_with(self.fail_with(error), expect="retried")
                Queue().clear()

    fail_with = OutcomeTests.fail_with


class SignalTests(RunnerMixin, TestCase):
    def test_a_start_and_an_end_are_reported(self):
        heard = []
        for name in ("started", "retried"):
            signal = getattr(signals, f"task_{name}")

            def listen(sender, queue, task, name=name, **kwargs):
                heard.append((name, sender.__name__, queue, task.key))

            signal.connect(listen, weak=False, dispatch_uid=name)
            self.addCleanup(signal.disconnect, dispatch_uid=name)

        self.run_with(tasks.fail)
        self.assertEqual(
            heard,
            [("started", "fail", "default", "task"), ("retried", "fail", "default", "task")],
        )

    def test_a_receiver_that_raises_disturbs_nobody(self):
        def stumble(**kwargs):
            raise ValueError("not my day")

        signals.task_started.connect(stumble)
        self.addCleanup(signals.task_started.disconnect, stumble)
        with self.assertLogs("django.dispatch", "ERROR"):
            self.run_with(tasks.report, expect="finished")


class ConnectionTests(RunnerMixin, TransactionTestCase):
    def test_a_transaction_that_was_left_open_is_rolled_back(self):
        """
        What a handler forgot to commit must not be committed by the next task's end.
        """
        FairShare.objects.create(user="a")
        row = self.run_with(tasks.spoil, expect="finished")

        self.assertFalse(connection.in_atomic_block)
        self.assertTrue(FairShare.objects.exists())
        self.assertEqual(row.status, "finished")

    def test_autocommit_that_was_switched_off_is_on_again(self):
        self.run_with(lambda task: transaction.set_autocommit(False), expect="finished")
        self.assertTrue(transaction.get_autocommit())

    def test_a_transaction_is_rolled_back_on_a_connection_that_a_handler_is_first_to_open(self):
        left = []

        def perform(task):
            link = connections["first"] = connection.copy()
            self.addCleanup(connections.__delitem__, "first")
            link.set_autocommit(False)
            link.cursor().execute("SELECT 1")
            left.append(link)

        self.run_with(perform, expect="finished")
        self.assertEqual([link.connection for link in left], [None])

    def test_a_connection_that_a_handler_broke_is_replaced(self):
        def perform(task):
            connection.connection.close()
            FairShare.objects.count()

        self.run_with(perform, expect="retried")

    def test_a_connection_is_kept_from_task_to_task(self):
        """
        CONN_MAX_AGE is about requests; connecting for each task would take most of the time.
        """
        seen = []
        for _task in range(2):
            self.run_with(lambda task: seen.append(connection.connection))
            Queue().clear()
        self.assertIs(seen[0], seen[1])

    def test_an_outcome_is_written_once_the_database_is_back(self):
        """
        An error of a task must not be forgotten for the database having a bad minute.
        """
        write, failures = store.settle, iter([OperationalError("gone") for _time in range(3)])

        def away(*args, **kwargs):
            for failure in failures:
                raise failure
            return write(*args, **kwargs)

        with (
            mock.patch.object(store, "settle", away),
            self.assertLogs("django_perfectqueue", "WARNING") as log,
        ):
            row = self.run_with(tasks.fail, expect="retried")
        self.assertEqual(row.ticket.errors, 1)
        self.assertEqual([line.split(":")[0] for line in log.output][-1], "WARNING")
        self.assertIn("The database is back", "".join(log.output))

    def test_a_task_whose_handler_cannot_be_made_is_held_until_that_is_written(self):
        """
        What is held nowhere is given back once the database is there again, and would run
        without the error having been counted.
        """

        class Fragile(Application):
            def __init__(self, task):
                raise ValueError("boom")

        submit("task", now=None)
        task = Queue().poll()
        runner, held = runner_for(Fragile), []
        self.addCleanup(runner.wakeup.close)
        runner.link.returned = lambda: held.append(runner.running.task)
        write, failures = store.settle, [OperationalError("gone")]

        def away(*args, **kwargs):
            if failures:
                raise failures.pop()
            return write(*args, **kwargs)

        with mock.patch.object(store, "settle", away), self.assertLogs("django_perfectqueue"):
            ending = runner.run(task)
        self.assertEqual((ending.word, held), ("retried", [task]))


class KillTests(RunnerMixin, TransactionTestCase):
    def test_a_reason_is_reported_once_and_only_while_the_handler_runs(self):
        reported = []

        class Listening(Application):
            def kill(self, reason):
                reported.append(reason)

            def perform(self):
                reason = PreemptedError("gone")
                for _time in range(2):
                    runner.running.kill(reason)

        submit("task", now=None)
        runner = runner_for(Listening)
        self.addCleanup(runner.wakeup.close)
        runner.run(Queue().poll())
        self.assertEqual(len(reported), 1)

    def test_a_kill_that_raises_is_logged(self):
        class Touchy(Application):
            def kill(self, reason):
                raise RuntimeError("not now")

            def perform(self):
                runner.running.kill(PreemptedError("gone"))

        submit("task", now=None)
        runner = runner_for(Touchy)
        self.addCleanup(runner.wakeup.close)
        with self.assertLogs("django_perfectqueue.runner", "ERROR"):
            ending = runner.run(Queue().poll())
        self.assertEqual(ending.word, "finished")

    def test_a_lapsed_lease_is_no_error_even_if_nobody_has_taken_the_task(self):
        """A processor that stood still learns it by its own clock."""

        class Late(Application):
            def perform(self):
                reason = PreemptedError("its lease ran out")
                runner.running.kill(reason)
                raise reason

        submit("task", now=None)
        runner = runner_for(Late)
        self.addCleanup(runner.wakeup.close)
        ending = runner.run(Queue().poll())
        self.assertEqual((ending.word, Ticket.objects.get().errors), ("preempted", 0))

    def test_the_reason_is_raised_in_the_middle_of_the_handler(self):
        class Sleeping(Application):
            def perform(self):
                gone = PreemptedError("gone")
                self.task.queue[self.task.key].force_finish()
                threading.Timer(0.05, runner.running.kill, [gone]).start()
                signal.pause()

        submit("task", now=None)
        before = signal.getsignal(signal.SIGURG)
        self.addCleanup(signal.signal, signal.SIGURG, before)
        runner = runner_for(Sleeping)
        self.addCleanup(runner.wakeup.close)
        runner.interrupter.install()
        with self.assertLogs("django_perfectqueue.runner", "WARNING"):
            ending = runner.run(Queue().poll())
        self.assertEqual(ending.word, "preempted")
