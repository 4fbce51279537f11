import os
from datetime import timedelta
from unittest import mock

from asgiref.sync import async_to_sync
from django.test import TestCase

from . import case, jobs  # isort: skip
from django_perfectqueue import compat, exceptions, store
from django_perfectqueue.models import Attempt
from django_perfectqueue.queue import Queue

from .inline import run_due


class WaitTests(TestCase):
    def test_a_result_that_there_is_is_returned_anew_whichever_it_is(self):
        backend = compat.task_backends["default"]
        for task, status in ((jobs.add, "SUCCESSFUL"), (jobs.boom, "FAILED")):
            result = task.enqueue(*((1, 2) if task is jobs.add else ("boom",)))
            run_due()
            for given in (result, result.id):
                self.assertEqual(backend.wait(given, timeout="1h").status, status)
                self.assertEqual(async_to_sync(backend.wait_async)(given).status, status)

    def test_one_that_has_yet_to_come_is_waited_for(self):
        backend, result = compat.task_backends["default"], jobs.add.enqueue(1, 2)
        with self.assertRaises(exceptions.WaitTimeoutError):
            backend.wait(result, timeout=0)
        with (
            mock.patch("django_perfectqueue.inspection.results.ResultWaiter.check"),
            mock.patch(
                "django_perfectqueue.inspection.results.ResultWaiter.wait", side_effect=run_due
            ),
        ):
            self.assertEqual(backend.wait(result).return_value, 3)
        with self.assertRaises(compat.TaskResultDoesNotExist):
            backend.wait("nobody")

    def test_one_that_is_deleted_meanwhile_is_no_more(self):
        backend, result = compat.task_backends["default"], jobs.add.enqueue(1, 2)
        with (
            mock.patch("django_perfectqueue.inspection.results.ResultWaiter.check"),
            mock.patch(
                "django_perfectqueue.inspection.results.ResultWaiter.wait",
                side_effect=Queue().clear,
            ),
            self.assertRaises(compat.TaskResultDoesNotExist),
        ):
            backend.wait(result)


class StatusTests(TestCase):
    """How each situation of a task is named in Django's four words."""

    def result(self, task=jobs.add, *args):
        result = task.enqueue(*(args or (1, 2)))
        self.key = result.id
        return result

    def refreshed(self, result):
        result.refresh()
        return result.status

    def test_what_waits_or_is_scheduled_is_ready(self):
        self.assertEqual(self.refreshed(self.result()), "READY")
        self.assertEqual(self.refreshed(self.result(jobs.add.using(run_after=case.LATER))), "READY")

    def test_what_runs_is_running_and_is_one_attempt(self):
        result = self.result()
        held = Queue().poll()
        self.assertEqual(self.refreshed(result), "RUNNING")
        self.assertEqual(result.worker_ids, [f"{held.lease.holder:x}"])
        self.assertIs(result.is_finished, False)

    def test_what_will_be_retried_is_ready_and_keeps_its_error(self):
        result = self.result(jobs.twice)
        held = Queue().poll()
        held.worker = "one:1"
        held.retry(60, why=store.Failure.of(ValueError("boom")))
        self.assertEqual(self.refreshed(result), "READY")
        self.assertEqual(result.worker_ids, ["one:1"])
        self.assertEqual([error.exception_class for error in result.errors], [ValueError])
        self.assertIsNotNone(result.last_attempted_at)

    def test_what_is_finished_is_successful(self):
        result = self.result()
        Queue().poll().finish({"value": 3})
        self.assertEqual(self.refreshed(result), "SUCCESSFUL")
        self.assertEqual((result.return_value, result.attempts), ({"value": 3}, 1))
        self.assertLessEqual(result.started_at, result.finished_at)

    def test_what_someone_closed_is_successful_without_an_attempt(self):
        result = self.result()
        Queue()[result.id].force_finish()
        self.assertEqual(self.refreshed(result), "SUCCESSFUL")
        self.assertEqual((result.return_value, result.worker_ids), (None, []))

    def test_what_was_cancelled_has_failed(self):
        result = self.result()
        Queue()[result.id].cancel_request()
        self.assertEqual(self.refreshed(result), "FAILED")
        self.assert_reported(result, exceptions.CancelRequestedError)
        self.assertEqual(result.attempts, 0)

    def test_what_has_expired_has_failed(self):
        result = self.result(jobs.add.using(expires_at=60))
        self.assertIsNone(Queue().poll(now=result.enqueued_at + timedelta(hours=1)))
        self.assertEqual(self.refreshed(result), "FAILED")
        self.assert_reported(result, exceptions.ExpiredError)

    def test_what_was_lost_with_its_process_is_ready_and_says_so(self):
        result = self.result()
        Queue().poll(alive_time=60)
        again = Queue().poll(now=result.enqueued_at + timedelta(hours=1))
        self.assertEqual(self.refreshed(result), "RUNNING")
        self.assert_reported(result, exceptions.LostError)
        self.assertEqual(result.attempts, 2)
        again.release()
        self.assertEqual(self.refreshed(result), "READY")

    def test_what_failed_in_words_of_its_own_is_reported_by_a_class_of_the_package(self):
        result = self.result()
        Queue().poll().fail("bad data", "the third line is empty")
        self.assertEqual(self.refreshed(result), "FAILED")
        self.assert_reported(result, exceptions.TaskError)
        self.assertIn("third line", result.errors[0].traceback)

    def assert_reported(self, result, kind):
        self.assertEqual([error.exception_class for error in result.errors], [kind])


class StoryTests(TestCase):
    def test_one_statement_tells_all_attempts(self):
        result = jobs.third_time.enqueue()
        run_due(ahead="1h")
        with self.assertNumQueries(1):
            result.refresh()
        self.assertEqual(result.return_value, ["builtins.ValueError"] * 2)
        self.assertEqual(result.worker_ids, [f"drain:{os.getpid()}"] * 3)
        self.assertIn("attempt 2", result.errors[1].traceback)
        self.assertEqual(Attempt.objects.count(), 2)
        self.assertLess(result.started_at, result.last_attempted_at)

    def test_a_result_may_be_read_by_another_alias_of_the_same_queue(self):
        result = jobs.add.enqueue(1, 2)
        run_due()
        self.assertEqual(jobs.add.get_backend().get_result(result.id).return_value, 3)
