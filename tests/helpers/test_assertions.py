from unittest import mock, skipUnless

from django.test import override_settings

from django_perfectqueue import compat
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import QueueTestCase, make_task, submitted

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

    def test_what_is_submitted_is_noted_and_not_run(self):
        task = self.queue.submit("k1", "helpers.add", {"a": 1, "b": 2}, user="ann")
        [noted] = submitted("helpers.add", user="ann")
        self.assertEqual((noted.task, noted.data), (task, {"a": 1, "b": 2}))
        self.assertTaskStatus(task, "waiting")

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
