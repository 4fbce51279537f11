from unittest import mock

from django.db import transaction
from django.test import TestCase

from django_perfectqueue.application import Dispatch
from django_perfectqueue.application.base import from_function
from django_perfectqueue.exceptions import NotSupportedError
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Attempt, Status
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain, make_task
from django_perfectqueue.test.factories import WAYS

from ..factories import assert_books_balance
from . import cases  # noqa: F401


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


class AtomicTests(TestCase):
    def settle(self, perform, auto_finish=True, data=None):
        """Return how an atomic handler's task was settled."""
        type_ = f"helpers.atomic-{auto_finish}"
        kind = from_function(perform, atomic=True, auto_finish=auto_finish)
        routes = type("Routes", (Dispatch,), {"routes": {type_: kind}})
        Queue().submit(None, type_, data)
        with mock.patch("django_perfectqueue.test.drain.workers_dispatch", return_value=routes):
            [run] = drain(raise_errors=False)
        return run

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
                run = self.settle(settle, auto_finish, {"verb": verb, "given": given})
                wait = 60.0 if verb == "snooze" else None
                result = "done" if verb == "finish" else None
                self.assertEqual((run.word, run.result, run.wait), (word, result, wait))

    def test_of_what_was_rolled_back_nothing_is_reported(self):
        def perform(task):
            with task.settling():
                task.finish("too early")
                raise ValueError("boom")

        run = self.settle(perform)
        self.assertEqual((run.word, run.result), ("retried", None))
