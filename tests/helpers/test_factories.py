import re

from django.db import transaction
from django.test import SimpleTestCase, TestCase

from django_perfectqueue.application.handler import from_function
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    InvalidTaskError,
    NotSupportedError,
    PreemptedError,
    UnknownTypeError,
)
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Attempt, Status
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain, make_acquired, make_task, recording, run_handler
from django_perfectqueue.test.factories import WAYS

from ..factories import assert_books_balance
from . import cases


class MakeTaskTests(TestCase):
    def test_there_is_a_way_to_each_status_but_blocked_to_which_nothing_leads(self):
        self.assertEqual({*WAYS, "blocked"}, set(Status.values))
        first = Queue().submit("first", "report", priority=9)
        for status in WAYS:
            with self.subTest(status):
                task = make_task("report", {"n": 1}, status=status, user="ann")
                row = task.metadata()
                self.assertEqual((row.status, row.data, row.user), (status, {"n": 1}, "ann"))
        self.assertEqual(first.metadata().status, "waiting")
        assert_books_balance(self)

    def test_results_and_reasons_can_be_given(self):
        self.assertEqual(make_task(status="finished", result=[1]).metadata().result, [1])
        failed = make_task(status="failed", error="too.Large", message="10 GB").metadata()
        self.assertEqual(
            (failed.dead_letter.group, failed.dead_letter.message), ("too.Large", "10 GB")
        )
        make_task(status="retrying", error="too.Early")
        self.assertEqual(Attempt.objects.get(ending="retried").error, "too.Early")

    def test_they_go_on_from_there(self):
        make_task("helpers.add", {"a": 1, "b": 1}, status="retrying", key="k1")
        make_task("helpers.add", {"a": 1, "b": 1}, status="stalled", key="k2")
        self.assertEqual(drain().keys, ["k2"])
        [run] = drain(ahead="2h")
        self.assertEqual((run.key, run.attempt, run.result), ("k1", 2, 2))

    def test_what_can_not_be_made_is_refused(self):
        with self.assertRaisesMessage(ValueError, "Did you mean 'finished'?"):
            make_task(status="finish")
        set_share("ann", paused=True)
        with self.assertRaisesMessage(NotSupportedError, "can't be acquired. Its user is paused"):
            make_task(status="running", user="ann")


class AtomicRehearsalTests(TestCase):
    def test_what_an_atomic_handler_settles_is_noted_when_it_has_returned(self):
        def settle(task):
            with transaction.atomic():
                task.finish("too early")
                transaction.set_rollback(True)
            getattr(task, task.data["verb"])(*task.data["given"])

        for verb, given, word in (
            ("finish", ["done"], "finished"),
            ("snooze", ["1m"], "snoozed"),
            ("discard", ["gone"], "discarded"),
        ):
            for auto_finish in (True, False):
                kind = from_function(settle, atomic=True, auto_finish=auto_finish)
                run = run_handler(kind, {"verb": verb, "given": given})
                wait = 60.0 if verb == "snooze" else None
                result = "done" if verb == "finish" else None
                self.assertEqual((run.word, run.result, run.wait), (word, result, wait))

    def test_of_what_was_rolled_back_nothing_is_reported(self):
        def perform(task):
            with task.settling():
                task.finish("too early")
                raise ValueError("boom")

        for atomic in (True, False):
            run = run_handler(from_function(perform, atomic=atomic), raise_errors=False)
            self.assertEqual((run.word, run.result), ("retried", None))


class RehearsalTests(SimpleTestCase):
    """
    None of them may ask the database: a SimpleTestCase sees to that.
    """

    def test_a_handler_runs_without_a_database(self):
        run = run_handler(cases.add, {"a": 1, "b": 2}, user="ann", key="k1")
        self.assertEqual((run.word, run.result, run.user, run.key), ("finished", 3, "ann", "k1"))
        self.assertEqual(run_handler("helpers.add", {"a": 2, "b": 2}).result, 4)
        with self.assertRaises(UnknownTypeError):
            run_handler("helpers.nowhere")

    def test_what_it_raises_is_raised_or_decided_on(self):
        task = make_acquired("helpers.sorted", {})
        with self.assertRaises(KeyError):
            run_handler(cases.Sorted, task=task)
        self.assertEqual((task.settled, task.why.error), ("failed", "incomplete"))
        run = run_handler(cases.Sorted, {"away": True}, raise_errors=False)
        self.assertEqual((run.word, run.wait), ("retried", 90))
        words = [run_handler("helpers.verdict", data).word for data in ("retry", "snooze")]
        self.assertEqual(words, ["retried", "snoozed"])

    def test_a_decision_can_be_asked_for_by_itself(self):
        task = make_acquired("helpers.sorted", user="ann")
        handler = cases.Sorted(task)
        handler.decide("unexpected_error_raised", error=ConnectionError("away"))
        self.assertEqual((task.settled, task.wait), ("retried", 90))
        with self.assertRaisesMessage(PreemptedError, "you retried it"):
            task.finish()
        with recording() as recorded:
            handler.decide("followed")
        self.assertEqual([(one.key, one.user) for one in recorded], [("follow", "ann")])

    def test_attempts_are_spent_by_the_handlers_policy(self):
        def fails(task):
            raise ValueError

        words = [
            run_handler(fails, attempt=attempt, raise_errors=False).word for attempt in (1, 4, 5)
        ]
        self.assertEqual(words, ["retried", "retried", "failed"])

    def test_a_coroutine_runs_and_its_decider_too(self):
        async def double(task):
            return task.data * 2

        self.assertEqual(run_handler(double, 4).result, 8)
        run = run_handler(cases.AsyncDecided, raise_errors=False)
        self.assertEqual((run.word, str(run.error)), ("failed", "in a loop"))

    def test_what_a_handler_calls_meanwhile_is_noted(self):
        task = make_acquired(data={"step": 1})
        self.assertEqual(run_handler(cases.polite, task=task).result, {"step": 2})
        self.assertEqual((task.data, task.settled), ({"step": 2}, "finished"))

    def test_a_cancel_is_seen_where_the_handler_looks(self):
        self.assertEqual(run_handler(cases.polite, {}, cancel_requested=True).word, "cancelled")
        with self.assertRaises(CancelRequestedError):
            run_handler(cases.Sorted, {"cancel": True})

    def test_every_way_to_settle_it_is_noted(self):
        ways = {
            "finished": lambda task: task.finish([1]),
            "retried": lambda task: task.retry(5),
            "released": lambda task: task.release(7),
            "failed": lambda task: task.fail("bad", "token-value"),
            "cancelled": lambda task: task.cancel(),
            "snoozed": lambda task: task.snooze(9),
            "discarded": lambda task: task.discard("done"),
        }
        for word, settle in ways.items():
            with self.subTest(word):
                task = make_acquired(data={"token": "token-value"})
                self.assertEqual(run_handler(settle, task=task).word, word)
                self.assertEqual(task.settled, word)
                if word == "failed":
                    self.assertEqual((task.why.error, task.why.message), ("bad", "********"))

    def test_the_task_is_as_it_was_made(self):
        task = make_acquired("report", {"n": 1}, user="ann", queue="q", attempt=3)
        self.assertEqual((task.type, task.data, task.user), ("report", {"n": 1}, "ann"))
        self.assertEqual((task.queue, task.attempt), (Queue("q"), 3))
        self.assertTrue(re.fullmatch(r"report-\d+", task.key))
        with self.assertRaises(InvalidTaskError):
            make_acquired(data=object())
        with self.assertRaises(InvalidTaskError):
            run_handler(lambda task: task.finish(object()), raise_errors=True)
