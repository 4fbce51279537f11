from unittest import mock, skipUnless

from django.db import transaction
from django.test import SimpleTestCase, override_settings

from django_perfectqueue import compat
from django_perfectqueue.exceptions import AlreadyExistsError, InvalidTaskError
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import (
    QueueAssertions,
    QueueTestCase,
    make_task,
    recording,
    submitted,
)

from . import cases  # noqa: F401


class AsyncTests(QueueTestCase):
    async def test_a_coroutine_asserts(self):
        task = await Queue().asubmit("k1", "report")
        await self.aassertSubmitted("report", count=1)
        await self.aassertNotSubmitted("other")
        await self.aassertTaskStatus(task, "waiting")

    def test_the_database_of_the_tasks_may_be_used(self):
        self.assertEqual(QueueTestCase.databases, {"default"})
        with override_settings(PERFECTQUEUE={"DATABASE": "jobs"}):
            self.assertEqual(QueueTestCase.databases, {"default", "jobs"})


class StoredTests(QueueTestCase):
    def test_what_was_submitted_is_found_by_any_part(self):
        self.queue.submit("k1", "report", {"pages": [1, 2]}, user="ann", priority=3)
        self.queue.submit("k2", "report", None)
        self.assertSubmitted("report")
        self.assertSubmitted("report", count=2)
        [one] = self.assertSubmitted("report", data={"pages": (1, mock.ANY)}, user="ann")
        self.assertEqual((one.key, one.data, one.task), ("k1", {"pages": [1, 2]}, self.queue["k1"]))
        self.assertSubmitted(key="k2", queue="default", priority=0, user="", data=None, count=1)
        self.assertNotSubmitted("report", user="bob")
        self.assertNotSubmitted("other")
        self.assertEqual([one.key for one in submitted()], ["k1", "k2"])

    def test_a_failure_lists_what_was_submitted_instead_without_secrets(self):
        self.queue.submit("k1", "report", {"token": "deep-secret", "pages": 2}, user="ann")
        with self.assertRaises(AssertionError) as raised:
            self.assertSubmitted("report", user="bob")
        self.assertEqual(
            str(raised.exception),
            "No task with type='report' and user='bob' was submitted. Submitted were:\n"
            "  default/k1 type='report' user='ann' data={'token': '********', 'pages': 2}",
        )
        with self.assertRaisesMessage(AssertionError, "1 instead of 0 tasks with type='report'"):
            self.assertNotSubmitted("report")
        with self.assertRaisesMessage(AssertionError, "1 instead of 2 tasks with"):
            self.assertSubmitted("report", count=2)
        with self.assertRaisesMessage(TypeError, "can't be looked for by 'usr'"):
            self.assertSubmitted("report", usr="ann")

    def test_a_long_list_and_long_data_are_cut(self):
        self.queue.submit_many(
            {"key": f"k{number}", "type": "report", "data": "x" * 400} for number in range(25)
        )
        with self.assertRaises(AssertionError) as raised:
            self.assertSubmitted("other")
        self.assertIn("\n  and 5 more", str(raised.exception))
        self.assertNotIn("x" * 301, str(raised.exception))

    def test_a_block_is_asked_only_for_what_is_submitted_in_it(self):
        self.queue.submit("before", "report")
        with self.assertSubmits("report", count=1) as new:
            self.queue.submit("within", "report")
        self.assertEqual([one.key for one in new], ["within"])
        with self.assertSubmits(count=0):
            pass
        with (
            self.assertRaisesMessage(AssertionError, "Nothing was submitted."),
            self.assertSubmits("report"),
        ):
            pass

    def test_a_failure_tells_of_what_waits_for_a_commit(self):
        transaction.on_commit(lambda: self.queue.submit("k1", "report"))
        with self.assertRaisesMessage(AssertionError, "captureOnCommitCallbacks(execute=True)"):
            self.assertSubmitted("report")

    def test_what_the_queue_itself_does_at_a_commit_is_not_reported(self):
        self.queue.submit_many([{"key": "k1", "type": "report"}])
        with self.assertRaises(AssertionError) as raised:
            self.assertSubmitted("other")
        self.assertNotIn("on_commit", str(raised.exception))

    def test_a_tasks_status_is_asserted_with_its_reason(self):
        task = make_task("report", status="failed", key="k1", message="too large")
        self.assertTaskStatus(task, "failed")
        self.assertTaskStatus("k1", "failed", queue=self.queue)
        self.assertTaskStatus(submitted()[0], "failed")
        wrong = "Task 'k1' is failed, not finished. builtins.ValueError: too large"
        with self.assertRaisesMessage(AssertionError, wrong):
            self.assertTaskStatus("k1", "finished")
        make_task("report", status="retrying", key="k2", message="too early")
        with self.assertRaisesMessage(AssertionError, "ValueError: too early"):
            self.assertTaskStatus("k2", "finished")
        with self.assertRaisesMessage(AssertionError, "Task 'k3' is waiting, not finished."):
            self.assertTaskStatus(make_task(key="k3"), "finished")
        with self.assertRaisesMessage(AssertionError, "There is no such status."):
            self.assertTaskStatus("k1", "done")

    @skipUnless(compat.HAS_TASKS, "There are no tasks of Django.")
    def test_a_task_of_django_is_asserted_by_itself(self):
        from ..backend import jobs

        result = jobs.add.using(priority=7).enqueue(1, b=2)
        self.assertSubmitted(jobs.add, args=(1,), kwargs={"b": 2}, priority=7, count=1)
        self.assertNotSubmitted(jobs.later)
        self.drain()
        self.assertTaskStatus(result, "finished")


class RecordingTests(QueueAssertions, SimpleTestCase):
    """
    None of them may ask the database: a SimpleTestCase sees to that.
    """

    def test_what_is_submitted_is_noted_and_not_stored(self):
        with recording() as recorded:
            task = Queue("q").submit("k1", "report", {"n": (1, 2)}, user="ann", run_at=60)
            self.assertSubmitted("report", data={"n": [1, 2]}, user="ann", queue="q")
            with self.assertSubmits("report", count=2):
                Queue().submit_many({"key": key, "type": "report"} for key in ("k2", "k3"))
        self.assertEqual(task, Queue("q")["k1"])
        self.assertEqual([one.key for one in recorded], ["k1", "k2", "k3"])
        self.assertIsNotNone(recorded[0].run_at)
        self.assertEqual(submitted_in(recorded), ["k1"])

    async def test_coroutines_are_recorded(self):
        with recording() as recorded:
            await Queue().asubmit("k1", "report")
            await Queue().asubmit_many([{"key": "k2", "type": "report"}])
        self.assertEqual([one.key for one in recorded], ["k1", "k2"])

    def test_what_is_wrong_is_refused_as_ever(self):
        with recording() as recorded:
            Queue().submit("k1", "report", 1)
            for wrong in ({"key": "", "type": "report"}, {"key": "k", "type": "r", "data": object}):
                with self.assertRaises(InvalidTaskError):
                    Queue().submit(**wrong)
            with self.assertRaises(InvalidTaskError):
                Queue().submit("k2", "report", on_conflict="never")
            with self.assertRaises(AlreadyExistsError):
                Queue().submit("k1", "report")
            with self.assertRaises(AlreadyExistsError):
                Queue().submit_many([{"key": "k1", "type": "report"}])
            Queue().submit("k1", "report", 2, on_conflict="ignore")
            self.assertSubmitted(data=1, count=1)
            Queue().submit("k1", "report", 3, on_conflict="replace")
        self.assertEqual([one.data for one in recorded], [3])

    def test_tasks_that_wait_and_batches_are_recorded(self):
        with recording() as recorded:
            Queue().chain([{"key": key, "type": "report"} for key in ("a", "b")])
            Queue().submit("c", "report", after=["b"])
            with Queue().batch("nightly", user="ann") as batch:
                batch.submit("d", "report")
                with batch.batch("inner") as inner:
                    inner.submit_many([{"key": "e", "type": "report"}])
                batch.then("mail", "report.mail", when="finished")
            with self.assertRaises(AlreadyExistsError), Queue().batch("nightly"):
                pass
            with self.assertRaises(InvalidTaskError):
                batch.then("x", "report.mail", when="never")
            with self.assertRaises(AlreadyExistsError):
                batch.submit("d", "report")
            self.assertSubmitted("report.mail", user="ann", count=1)
        self.assertEqual([one.key for one in recorded], ["a", "b", "c", "d", "e", "mail"])
        self.assertEqual(submitted_in(recorded), ["d", "e", "mail"])

    def test_recordings_stand_in_each_other(self):
        with recording() as outer:
            with recording() as inner:
                Queue().submit("k1", "report")
            Queue().submit("k2", "report")
        self.assertEqual(([one.key for one in inner], [one.key for one in outer]), (["k1"], ["k2"]))

    @skipUnless(compat.HAS_TASKS, "There are no tasks of Django.")
    def test_tasks_of_django_are_recorded(self):
        from ..backend import jobs

        with recording():
            result = jobs.report.enqueue("ann")
            jobs.twice.enqueue_many([((), {}), ((), {})])
            self.assertSubmitted(jobs.report, key=result.id, user="ann", args=["ann"], kwargs={})
            self.assertSubmitted(jobs.twice, count=2)


def submitted_in(recorded):
    return [one.key for one in recorded if one.user == "ann"]
