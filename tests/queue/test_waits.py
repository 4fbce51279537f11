"""Tasks that sleep, and that wait for signals: what is kept, and who is first."""

from datetime import timedelta

from django.test import TestCase
from django.utils import timezone

import django_perfectqueue as pq
from django_perfectqueue.application import handler
from django_perfectqueue.exceptions import (
    NotSupportedError,
)
from django_perfectqueue.models import Attempt, Step, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain, eager

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
KINDS = Step.Kind

calls = []


@handler("waits.approve")
def approve(task):
    draft = task.step("draft", lambda: calls.append("draft") or "draft")
    answer = task.wait_for("approved", timeout="7d")
    if not answer:
        return "Nobody answered."
    task.sleep("cooling-off", "2d")
    return task.step("charge", lambda: calls.append("charge") or [draft, answer])


@handler("waits.in-a-loop")
async def approve_in_a_loop(task):
    answer = await task.await_for("approved")
    await task.asleep("cooling-off", "2d")
    return answer


@handler("waits.by-function")
def by_function(task):
    pq.sleep("first", 60)
    pq.sleep_until("second", task.created_at + DAY)
    return pq.wait_for("third", 60)


@handler("waits.by-coroutine")
async def by_coroutine(task):
    await pq.asleep("first", 60)
    await pq.asleep_until("second", task.created_at + DAY)
    return await pq.await_for("third", 60)


def waits(name="approved"):
    return Step.objects.get(kind=KINDS.WAIT, name=name)


class WorkflowTests(TestCase):
    """What a handler sees, run in place; the time is moved by ``now=``."""

    def setUp(self):
        calls.clear()
        self.now = timezone.now()

    def submit(self, type="waits.approve", **options):
        self.handle = Queue().submit("k1", type, **options)
        return self.handle

    def drained(self, after=timedelta(), **options):
        return drain(now=self.now + after, **options)

    def status(self):
        return self.handle.metadata().status

    def test_it_waits_for_its_signal_then_sleeps_then_ends(self):
        self.submit()
        [run] = self.drained()
        self.assertEqual((run.word, run.wait, run.error), ("suspended", 7 * 86_400, None))
        self.assertEqual(self.status(), "blocked")
        self.assertEqual(self.drained(6 * DAY), [])

        self.assertTrue(self.handle.signal("approved", {"by": 7}))
        [run] = self.drained(DAY)
        self.assertEqual((run.word, run.wait), ("suspended", 2 * 86_400))
        self.assertEqual(self.status(), "scheduled")
        self.assertEqual(self.drained(2 * DAY), [])

        [run] = self.drained(3 * DAY)
        self.assertEqual((run.word, run.result), ("finished", ["draft", {"by": 7}]))
        self.assertEqual(calls, ["draft", "charge"])
        self.assertEqual((run.attempt, Attempt.objects.count()), (1, 0))

    def test_a_wait_whose_time_is_over_returns_none(self):
        self.submit()
        self.drained()
        [run] = self.drained(7 * DAY)
        self.assertEqual(run.result, "Nobody answered.")

    def test_time_passes_with_ahead(self):
        self.submit()
        self.assertEqual(drain(ahead="8d").words, ["suspended", "finished"])

    def test_a_signal_before_the_wait_is_reached(self):
        self.submit().signal("approved", 1)
        self.assertEqual(self.drained().words, ["suspended"])
        self.assertEqual(self.status(), "scheduled")
        self.assertFalse(Step.objects.filter(kind=KINDS.WAIT).exists())

    def test_a_coroutine(self):
        self.submit("waits.in-a-loop")
        [run] = self.drained()
        self.assertEqual((run.word, run.wait), ("suspended", float("inf")))
        self.handle.signal("approved", [1])
        self.assertEqual(self.drained().words, ["suspended"])
        self.assertEqual(self.drained(2 * DAY).results, [[1]])

    def test_module_functions(self):
        for name in ("waits.by-function", "waits.by-coroutine"):
            with self.subTest(name):
                self.submit(name)
                self.assertEqual(self.drained().words, ["suspended"])
                self.assertEqual(self.drained(timedelta(seconds=59)), [])
                self.assertEqual(self.drained(timedelta(seconds=61)).words, ["suspended"])
                self.assertEqual(self.drained(DAY + HOUR).words, ["suspended"])
                [run] = self.drained(DAY + 2 * HOUR)
                self.assertEqual((run.word, run.result), ("finished", None))
                Queue().clear()

    def test_where_no_task_runs(self):
        pq.sleep("nap", "2d")
        pq.sleep_until("nap", self.now + DAY)
        with self.assertRaisesMessage(NotSupportedError, "No task runs here"):
            pq.wait_for("approved")

    def test_eager(self):
        with eager():
            self.submit()
            self.assertEqual(self.status(), "blocked")
            self.handle.signal("approved", 1)
            self.assertEqual(self.status(), "scheduled")
        self.assertEqual(self.drained(2 * DAY + HOUR).words, ["finished"])

    def test_a_retry_before_its_time_waits_on_for_the_same_time(self):
        self.submit().signal("approved", 1)
        self.drained()
        before = Step.objects.get(kind=KINDS.SLEEP)
        self.handle.retry()
        [run] = self.drained(DAY)
        self.assertEqual((run.word, run.wait), ("suspended", 86_400))
        after = Step.objects.get(kind=KINDS.SLEEP)
        self.assertEqual((after.until, after.kept_at), (before.until, before.kept_at))
        self.assertEqual(Ticket.objects.get().timer_at, before.until)
        self.assertEqual(self.drained(2 * DAY).words, ["finished"])
