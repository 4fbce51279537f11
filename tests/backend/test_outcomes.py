from datetime import timedelta

from django.test import TestCase, override_settings

from . import case, jobs  # isort: skip
from django_perfectqueue import compat, verdicts
from django_perfectqueue.application import Exponential, Fixed
from django_perfectqueue.models import Attempt
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain

from .inline import run_due


class OutcomeTests(TestCase):
    def run_one(self, task, *args, word):
        """Enqueue a task and have it run; return its result."""
        result = task.enqueue(*args)
        self.assertEqual([ending.word for ending in run_due(only=1)], [word])
        result.refresh()
        return result

    def kinds(self, result):
        return [error.exception_class for error in result.errors]

    def wait(self, result):
        """Return after how many seconds it is tried again."""
        ticket, attempt = Queue()[result.id].metadata().ticket, Attempt.objects.latest("id")
        return (ticket.timer_at - attempt.ended_at).total_seconds()

    def test_a_task_may_say_what_becomes_of_it(self):
        """
        Who raises Retry has said that one try is not enough.
        """
        for task in (jobs.says, jobs.says_later):
            retried = self.run_one(task, "retry", word="retried")
            self.assertEqual((retried.status, self.kinds(retried)), ("READY", [verdicts.Retry]))
            self.assertAlmostEqual(self.wait(retried), 60, delta=1)
            snoozed = self.run_one(task, "snooze", word="snoozed")
            self.assertEqual((snoozed.status, snoozed.errors), ("READY", []))
            discarded = self.run_one(task, "discard", word="discarded")
            self.assertEqual(discarded.status, "FAILED")
            self.assertEqual(self.kinds(discarded), [verdicts.Discard])
            self.assertIn("as it should", discarded.errors[0].traceback)

    def test_attempts_that_are_given_hold_for_a_retry_too(self):
        self.run_one(jobs.says.using(max_attempts=1), "retry", word="failed")
        with override_settings(PERFECTQUEUE={"MAX_ATTEMPTS": 1}):
            failed = self.run_one(jobs.retries_for, "k", word="failed")
        self.assertEqual(self.kinds(failed), [KeyError])

    def test_errors_have_rules_by_their_class(self):
        retried = self.run_one(jobs.ruled, "os", word="retried")
        self.assertTrue(44 <= self.wait(retried) <= 76)
        self.assertEqual(self.kinds(retried), [ConnectionError])
        discarded = self.run_one(jobs.ruled, "key", word="discarded")
        self.assertEqual((discarded.status, self.kinds(discarded)), ("FAILED", [KeyError]))
        self.run_one(jobs.ruled, "value", word="failed")
        self.run_one(jobs.ruled, "other", word="failed")

    def test_what_signals_are_reported_is_what_is_stored(self):
        heard = {}

        def hear(task_result, **kwargs):
            heard[task_result.id] = task_result

        compat.signals.task_finished.connect(hear)
        self.addCleanup(compat.signals.task_finished.disconnect, hear)
        for task, args, word in (
            (jobs.says.using(max_attempts=1), ["retry"], "failed"),
            (jobs.retries_for.using(max_attempts=1), ["k"], "failed"),
            (jobs.says_later, ["discard"], "discarded"),
            (jobs.ruled, ["key"], "discarded"),
        ):
            stored = self.run_one(task, *args, word=word)
            reported = heard[stored.id]
            self.assertEqual((reported.status, reported.errors), (stored.status, stored.errors))

    def test_waits_are_those_of_the_task_or_the_backend_or_the_settings(self):
        self.assertEqual(round(self.wait(self.run_one(jobs.fixed, word="retried"))), 60)
        path = "tests.backend.jobs.always_forty"
        for given in ({"OPTIONS": {"backoff": path}}, {"BACKOFF": jobs.always_forty}):
            with override_settings(TASKS=case.tasks_with(**given)):
                retried = self.run_one(jobs.boom, "x", word="retried")
                self.assertEqual(round(self.wait(retried)), 40)
        with override_settings(PERFECTQUEUE={"BACKOFF": path}):
            self.assertEqual(round(self.wait(self.run_one(jobs.twice, word="retried"))), 40)
            self.run_one(jobs.boom, "x", word="failed")
        with override_settings(TASKS=case.tasks_with(MAX_ATTEMPTS=2)):
            self.run_one(jobs.boom, "x", word="retried")

    def test_a_call_has_attempts_and_waits_of_its_own(self):
        for task in (jobs.boom, jobs.patient):
            again = task.using(backoff=Fixed(9, jitter=0), max_attempts=2)
            retried = self.run_one(again, "x", word="retried")
            self.assertEqual(round(self.wait(retried)), 9)
            self.assertEqual(retried.task.backoff.usual(1), 9)
            self.assertEqual(retried.task.max_attempts, 2)
        self.run_one(jobs.patient.using(max_attempts=1), "x", word="failed")
        # As for one that is defined with a backoff, there are MAX_ATTEMPTS then.
        self.run_one(jobs.boom.using(backoff=Fixed(9)), "x", word="retried")
        Queue().submit("k", jobs.boom.module_path, {"args": ["x"]}, backoff=9)
        drain(raise_errors=False)
        self.assertEqual(Queue()["k"].metadata().status, "retrying")

    def test_what_will_not_do_is_refused_where_it_is_defined(self):
        for words in (
            {"backoff": Exponential},
            {"retry_on": 5},
            {"retry_on": {OSError: "soon"}},
            {"discard_on": "ValueError"},
            {"fail_on": OSError, "retry_on": OSError},
        ):
            with self.subTest(words), self.assertRaises(compat.InvalidTask) as caught:
                compat.task(**words)(jobs.add.func)
            self.assertNotIn("((", str(caught.exception))

    def test_rules_are_those_of_the_definition(self):
        """
        A row can't keep a class.
        """
        with self.assertRaisesMessage(compat.InvalidTask, "retry_on can't be changed by using()"):
            jobs.ruled.using(retry_on=(TypeError,)).enqueue("os")

    def test_a_task_that_is_put_off_runs_in_the_end(self):
        result = jobs.says.enqueue("snooze")
        for hours in (0, 1, 2):
            [ending] = run_due(now=result.enqueued_at + timedelta(hours=hours), only=1)
            self.assertEqual((ending.word, ending.attempt), ("snoozed", 1))
