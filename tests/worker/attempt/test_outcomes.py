"""What a handler raises to say what becomes of its task, and what is reported of it."""

import logging
import signal

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings

from django_perfectqueue import signals, store
from django_perfectqueue.application import Application, Decider, Discard, Fixed, Retry, Snooze
from django_perfectqueue.exceptions import (
    GracefulProcessStopError,
    InvalidTaskError,
    PayloadError,
    PreemptedError,
)
from django_perfectqueue.models import Account, Attempt, FairShare, Task, Ticket
from django_perfectqueue.payload.context import STARS
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.database.transaction import shared

from ..crews import ConcurrentTestCase
from .test_runner import RunnerMixin

LOGGER = "django_perfectqueue.runner"


def raising(error):
    def perform(task):
        raise error

    return perform


class VerdictTests(RunnerMixin, TestCase):
    def quietly(self, perform, expect, **given):
        """Run a task of which no more is logged than a line."""
        with self.assertLogs(LOGGER, "INFO") as log:
            row = self.run_with(perform, expect=expect, **given)
        [record] = log.records
        self.assertEqual((record.levelno, record.exc_info), (logging.INFO, None))
        return row

    def test_a_retry_waits_as_long_as_it_says_and_counts(self):
        row = self.quietly(raising(Retry("1m", "the printer is off")), "retried")
        attempt = Attempt.objects.get()
        self.assertEqual((row.status, row.ticket.errors), ("retrying", 1))
        wait = row.ticket.timer_at - attempt.ended_at
        self.assertAlmostEqual(wait.total_seconds(), 60, delta=1)
        self.assertEqual(attempt.error, "django_perfectqueue.verdicts.Retry")
        self.assertEqual(attempt.message, "the printer is off")

    def test_a_retry_keeps_the_error_that_it_was_raised_from_and_nothing_secret(self):
        def perform(task):
            try:
                raise ConnectionError(f"refused: {task.data['password']}")
            except ConnectionError as error:
                raise Retry(5) from error

        self.quietly(perform, "retried", data={"password": "hunter22"})
        attempt = Attempt.objects.get()
        self.assertEqual(attempt.error, "builtins.ConnectionError")
        self.assertIn("raise Retry(5) from error", attempt.traceback)
        self.assertTrue(attempt.message.startswith("refused: **"), attempt.message)
        self.assertNotIn("hunter22", attempt.traceback)
        self.assertIsNotNone(attempt.started_at)

    @override_settings(PERFECTQUEUE={"MAX_ATTEMPTS": 1})
    def test_a_retry_fails_when_the_attempts_are_spent(self):
        with self.assertLogs(LOGGER, "ERROR") as log:
            row = self.run_with(raising(Retry(5, "still off")), expect="failed")
        self.assertEqual((row.status, row.dead_letter.message), ("failed", "still off"))
        self.assertIn("Retry: still off", log.output[0])

    def test_a_snooze_counts_nothing_and_is_paid_for(self):
        row = self.quietly(raising(Snooze("1h")), "snoozed")
        self.assertEqual((row.status, row.ticket.errors), ("scheduled", 0))
        self.assertFalse(Attempt.objects.exists())
        self.assertEqual(Account.objects.get().running, 0)

    def test_a_discard_ends_it_with_the_reason(self):
        data = {"token": "hunter22"}
        row = self.quietly(raising(Discard("hunter22 is no customer")), "discarded", data=data)
        self.assertEqual(row.status, "cancelled")
        letter, attempt = row.dead_letter, Attempt.objects.get()
        self.assertEqual(
            (letter.group, letter.message, letter.errors),
            ("discarded", f"{STARS} is no customer", 0),
        )
        self.assertEqual(attempt.message, letter.message)
        self.assertEqual(attempt.error, "django_perfectqueue.verdicts.Discard")
        self.assertEqual((attempt.ending, attempt.number), ("cancelled", 1))

    def test_an_error_that_is_to_be_discarded_is_kept(self):
        class Measure(Application):
            discard_on = (FairShare.DoesNotExist,)

            def perform(self):
                FairShare.objects.get(user="nobody")

        row = self.quietly(Measure, "discarded")
        attempt = Attempt.objects.get()
        name = "django_perfectqueue.models.rule.FairShare.DoesNotExist"
        self.assertEqual((attempt.error, row.dead_letter.group), (name, "discarded"))
        self.assertIn(f"{name}: FairShare matching", row.dead_letter.message)
        self.assertIn("FairShare.objects.get(", attempt.traceback)

    def test_a_task_that_is_to_be_cancelled_is_whatever_it_says(self):
        def perform(task):
            Queue()[task.key].cancel_request()
            raise Retry(5) if task.data["retry"] else Snooze(5)

        for retry in (True, False):
            row = self.quietly(perform, "cancelled", data={"retry": retry})
            self.assertEqual((row.status, row.dead_letter.group), ("cancelled", "cancelled"))
            Queue().clear()

    def test_a_preempted_handler_may_say_what_it_likes(self):
        for verdict in (Retry(5), Snooze(5), Discard()):

            def perform(task, verdict=verdict):
                Queue()[task.key].force_finish()
                raise verdict

            with self.assertLogs(LOGGER, "WARNING"):
                row = self.run_with(perform, expect="preempted")
            self.assertEqual(row.status, "finished")
            Queue().clear()

    def test_a_decider_is_not_asked_and_may_raise_them_itself(self):
        class Choosy(Decider):
            def unexpected_error_raised(self, error):
                if isinstance(error, OSError):
                    raise Snooze(60)
                raise Discard

        class Choice(Application):
            decider = Choosy

            def perform(self):
                raise {"os": OSError("gone"), "key": KeyError("k"), "retry": Retry(5)}[
                    self.task.data["raise"]
                ]

        for word, expected in (("os", "snoozed"), ("key", "discarded"), ("retry", "retried")):
            self.quietly(Choice, expected, data={"raise": word})
            if word == "key":
                self.assertEqual(Attempt.objects.get().error, "builtins.KeyError")
            Queue().clear()

    def test_they_work_before_and_after_and_when_it_is_made(self):
        class Before(Application):
            def before_perform(self):
                raise Snooze(60)

        class After(Application):
            def perform(self):
                return 1

            def after_perform(self):
                raise Retry(60)

        class Made(Application):
            def __init__(self, task):
                raise Discard("for good")

        for handler, expected in ((Before, "snoozed"), (After, "retried"), (Made, "discarded")):
            self.quietly(handler, expected)
            Queue().clear()

    def test_rules_that_will_not_do_cost_no_processor(self):
        """
        A worker refuses them at its start; but a handler may change its own.
        """

        class Wrong(Application):
            def __init__(self, task):
                super().__init__(task)
                self.retry_on = 3

            def perform(self):
                raise ValueError("boom")

        with self.assertLogs(LOGGER, "ERROR") as log:
            self.run_with(Wrong, expect="retried")
        self.assertIn("the default rules apply", "".join(log.output))

    def test_a_verdict_that_will_not_do_costs_no_processor(self):
        """
        Who derives from one may forget what it needs.
        """

        class Bare(Snooze):
            def __init__(self, reason):
                self.reason = reason

        class Spans(Retry):
            def __init__(self, after):
                self.after = after

        class Wrong(Snooze):
            after = "soon"

            def __init__(self):
                pass

        for error, word in (
            (Bare("busy"), "snoozed"),
            (Spans("1m"), "retried"),
            (Spans("soon"), "retried"),
            (Wrong(), "retried"),
            (Discard(ValueError("no text")), "discarded"),
        ):
            with self.subTest(error), self.assertLogs(LOGGER):
                self.run_with(raising(error), expect=word)
            Queue().clear()

    def test_waits_are_spans_and_others_are_refused(self):
        def perform(task):
            for wrong in ("soon", float("nan"), float("inf"), None, 1e12):
                with self.assertRaisesMessage(InvalidTaskError, "The wait of release() must be"):
                    task.release(wrong)
            with self.assertRaisesMessage(InvalidTaskError, "The wait of retry() must be"):
                task.retry("soon")
            task.retry("1h")

        row = self.run_with(perform, expect="retried")
        wait = row.ticket.timer_at - Attempt.objects.get().ended_at
        self.assertAlmostEqual(wait.total_seconds(), 3600, delta=1)


class SignalTests(RunnerMixin, TestCase):
    def test_each_end_of_an_attempt_is_reported_with_the_task_and_the_error(self):
        heard = []

        def hear(signal, sender, queue, key, type, user, task, error, **kwargs):
            heard.append((signal, sender.__name__, queue, key, type, user, task, error))

        names = ("retried", "snoozed", "discarded", "failed", "released", "preempted", "cancelled")
        for name in names:
            signal = getattr(signals, f"task_{name}")
            signal.connect(hear)
            self.addCleanup(signal.disconnect, hear)

        def perform(task):
            if task.data["act"]:
                getattr(Queue()[task.key], task.data["act"])()
            if task.data["error"] == "heartbeat":
                task.heartbeat()
            raise errors[task.data["error"]]

        errors = {
            "retry": Retry(5),
            "snooze": Snooze(5),
            "discard": Discard(),
            "payload": PayloadError("broken"),
            "stop": GracefulProcessStopError(),
        }
        for error, act, word in (
            ("retry", "", "retried"),
            ("snooze", "", "snoozed"),
            ("discard", "", "discarded"),
            ("payload", "", "failed"),
            ("stop", "", "released"),
            ("stop", "cancel_request", "cancelled"),
            ("heartbeat", "force_finish", "preempted"),
            ("heartbeat", "cancel_request", "cancelled"),
        ):
            with self.subTest(word), self.assertLogs(LOGGER):
                self.run_with(perform, data={"error": error, "act": act}, expect=word)
                Queue().clear()
                signal = getattr(signals, f"task_{word}")
                expected = errors.get(error) or self.ending.error
                [reported] = heard
                self.assertEqual(reported[0], signal)
                self.assertEqual(reported[1:6], ("perform", "default", "task", "report", ""))
                self.assertEqual(reported[6:], (self.task, expected))
                heard.clear()

    def test_what_a_receiver_calls_is_no_part_of_the_call_that_ended_it(self):
        """
        A processor posts what has finished, and signals it, in one call of its own.
        """
        seen = []

        def look(**kwargs):
            seen.append(shared.get())

        signals.task_retried.connect(look)
        self.addCleanup(signals.task_retried.disconnect, look)
        with store.database.single_operation():
            self.run_with(raising(Retry(5)), expect="retried")
        self.assertEqual(seen, [None])


class ProcessorTests(ConcurrentTestCase):
    def test_they_work_in_processors_of_every_type(self):
        self.addCleanup(signal.signal, signal.SIGURG, signal.getsignal(signal.SIGURG))
        verdicts = {"retry": Retry(60), "snooze": Snooze(60), "discard": Discard("so be it")}

        def function(task):
            raise verdicts[task.data["raise"]]

        async def coroutine(task):
            function(task)

        class Ruled(Application):
            retry_on = {OSError: Fixed(60)}

            async def perform(self):
                raise OSError("gone")

        routes = {"function": function, "coroutine": coroutine, "ruled": Ruled}
        expected = {"retried": 3, "snoozed": 2, "discarded": 2}
        for type_ in ("process", "thread", "async"):
            with self.subTest(type_), self.assertLogs("django_perfectqueue"):
                Queue().submit("ruled", "ruled")
                for kind in ("function", "coroutine"):
                    for word in verdicts:
                        Queue().submit(f"{kind}-{word}", kind, {"raise": word})
                processor = self.processor(type_, routes)
                self.work(processor)
                counts = processor.status.totals()
                self.assertEqual({word: counts[word] for word in expected}, expected)
                Queue().clear()

    def test_a_coroutine_settles_with_what_follows_too(self):
        """
        The transaction is that of another thread than the one that looks what came of it.
        """

        def settle(task):
            with task.settling():
                task.queue.submit(f"next-{task.key}", "nothing")
                task.finish("settled")
                if task.data["fails"]:
                    raise OSError("the disk is full")

        async def coroutine(task):
            await sync_to_async(settle)(task)

        for type_ in ("thread", "async"):
            with self.subTest(type_), self.assertLogs("django_perfectqueue"):
                for key, fails in (("good", False), ("bad", True)):
                    Queue().submit(key, "coroutine", {"fails": fails})
                routes = {"coroutine": coroutine, "nothing": lambda task: None}
                self.work(self.processor(type_, routes))
                self.assertEqual(
                    self.statuses(),
                    {"good": "finished", "next-good": "finished", "bad": "retrying"},
                )
                self.assertEqual(Queue()["good"].metadata().result, "settled")
                Queue().clear()


class SettlingTests(RunnerMixin, TransactionTestCase):
    """Deciders settle a task and submit what follows: both or neither."""

    def next_exists(self):
        return Queue()["next"].exists()

    def test_what_follows_is_there_when_it_is_settled(self):
        class Chain(Decider):
            def done(self, verb, given):
                with self.task.settling():
                    self.queue.submit("next", "report")
                    getattr(self.task, verb)(*given)

        class First(Application):
            decider = Chain

            def perform(self):
                self.decide("done", **self.task.data)

        for verb, given, word in (
            ("finish", [{"rows": 3}], "finished"),
            ("retry", [60], "retried"),
            ("snooze", ["1m"], "snoozed"),
            ("fail", ["hopeless"], "failed"),
            ("discard", [], "discarded"),
        ):
            with self.subTest(verb):
                row = self.run_with(First, data={"verb": verb, "given": given}, expect=word)
                self.assertTrue(self.next_exists())
                self.assertIsNone(self.ending.completion)
                self.assertNotEqual(row.status, "running")
                Queue().clear()

    def test_an_error_in_between_leaves_neither(self):
        """
        The task is as it was, and what the handler raises is an error like any other.
        """

        def perform(task):
            with task.settling():
                task.finish("done")
                self.seen = [task.settled]
                task.queue.submit("next", "report")
                raise OSError("the disk is full")

        row = self.run_with(perform, expect="retried")
        self.assertEqual((row.status, row.result, self.seen), ("retrying", None, ["finished"]))
        self.assertEqual((self.next_exists(), self.task.settled), (False, "retried"))

    def test_who_catches_the_error_still_has_the_task(self):
        def perform(task):
            for outer in (transaction.atomic(), task.settling()):
                try:
                    with outer:
                        task.finish("done")
                        raise OSError("the disk is full")
                except OSError:
                    self.assertEqual(task.settled, "")
            task.heartbeat()
            return "all the same"

        row = self.run_with(perform, expect="finished")
        self.assertEqual(row.result, "all the same")

    def test_data_that_went_back_with_it_are_not_stored_later(self):
        def perform(task):
            with self.assertRaises(OSError), task.settling():
                task.update_data({"page": 2})
                raise OSError("the disk is full")
            self.assertEqual(task.data, {"page": 1})
            task.update_data({"note": "full"})

        row = self.run_with(perform, data={"page": 1}, expect="finished")
        self.assertEqual(row.data, {"page": 1, "note": "full"})

    def test_a_savepoint_that_is_rolled_back_settles_nothing(self):
        def perform(task):
            with transaction.atomic():
                try:
                    with task.settling():
                        task.fail("hopeless")
                        raise OSError("gone")
                except OSError:
                    task.queue.submit("next", "report")
                self.seen = task.settled

        row = self.run_with(perform, expect="finished")
        self.assertEqual((row.status, self.seen, self.next_exists()), ("finished", "", True))

    def test_a_crash_in_between_leaves_neither(self):
        def perform(task):
            with task.settling():
                task.finish("done")
                task.queue.submit("next", "report")
                connection.connection.close()

        self.run_with(perform, expect="retried")
        self.assertFalse(self.next_exists())
        self.assertEqual(Ticket.objects.get().errors, 1)

    def test_a_lease_that_was_lost_leaves_neither(self):
        def perform(task):
            Queue()[task.key].force_finish()
            with task.settling():
                task.queue.submit("next", "report")
                task.finish("done")

        with self.assertLogs(LOGGER, "WARNING"):
            row = self.run_with(perform, expect="preempted")
        self.assertEqual((row.status, row.result, self.next_exists()), ("finished", None, False))

    def test_a_transaction_that_is_left_open_settles_nothing(self):
        def perform(task):
            transaction.atomic().__enter__()
            task.finish("done")
            task.queue.submit("next", "report")

        row = self.run_with(perform, expect="finished")
        self.assertEqual((row.result, self.next_exists()), (None, False))
        self.assertIsNotNone(self.ending.completion)

    def test_a_decider_that_leaves_its_transaction_open_has_settled_nothing(self):
        class Forgetful(Decider):
            def unexpected_error_raised(self, error):
                transaction.atomic().__enter__()
                self.task.finish("done")

        class Failing(Application):
            decider = Forgetful

            def perform(self):
                raise OSError("gone")

        row = self.run_with(Failing, expect="retried")
        self.assertEqual((row.status, row.result), ("retrying", None))

    def test_a_backoff_that_leaves_its_transaction_open_has_done_nothing(self):
        class Failing(Application):
            def perform(self):
                raise OSError("gone")

            def backoff(self, error):
                transaction.atomic().__enter__()
                self.queue.submit("next", "report")
                return 60

        row = self.run_with(Failing, expect="retried")
        self.assertEqual((row.status, self.next_exists()), ("retrying", False))
        self.assertFalse(connection.in_atomic_block)

    def test_an_error_after_the_commit_changes_nothing(self):
        def perform(task):
            with task.settling():
                task.finish("done")
            raise OSError("too late")

        with self.assertLogs(LOGGER, "ERROR") as log:
            row = self.run_with(perform, expect="finished")
        self.assertEqual(row.result, "done")
        self.assertIn("raised after its task was finished", log.output[0])

    def test_a_program_that_polls_has_it_too(self):
        for number in range(2):
            Queue().submit(f"k{number}", "report")
        task = Queue().poll()
        with self.assertRaises(PreemptedError), task.settling():
            task.finish()
            Queue().submit("next", "report")
            other = Queue().poll()
            other.release()
            other.finish()
        self.assertEqual((task.settled, self.next_exists()), ("", False))
        self.assertEqual(Task.objects.filter(status="running").count(), 1)
