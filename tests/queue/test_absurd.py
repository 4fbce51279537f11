"""What the tests of absurd and django-absurd ask of sleeps and events, as tests of this package."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import transaction
from django.test import TestCase, TransactionTestCase, skipUnlessDBFeature
from django.utils import timezone

import django_perfectqueue as pq
from django_perfectqueue.application import handler
from django_perfectqueue.exceptions import NotSupportedError, SuspendedError
from django_perfectqueue.models import Step
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain

from ..factories import elsewhere

WEEK = timedelta(days=7)
GIVEN = {"tracking": "abc"}
steps_run = []


@handler("absurd.wait")
def wait(task):
    return task.wait_for("packed", task.data)


@handler("absurd.wait-in-a-loop")
async def wait_in_a_loop(task):
    return await task.await_for("packed", task.data)


@handler("absurd.sleep")
def sleep(task):
    count = task.step("bump", lambda: steps_run.append(1) or len(steps_run))
    task.sleep("week", WEEK)
    return count


@handler("absurd.sleep-in-a-loop")
async def sleep_in_a_loop(task):
    count = await task.astep("bump", lambda: steps_run.append(1) or len(steps_run))
    await task.asleep("week", WEEK)
    return count


@handler("absurd.sleep-until")
def sleep_until(task):
    task.sleep_until("until", task.created_at + WEEK)
    return "woke"


@handler("absurd.sleep-until-in-a-loop")
async def sleep_until_in_a_loop(task):
    await task.asleep_until("until", task.created_at + WEEK)
    return "woke"


@handler("absurd.sleep-twice")
def sleep_twice(task):
    task.sleep("first", WEEK)
    task.sleep("second", timedelta(days=3))
    return "woke-twice"


@handler("absurd.send")
def send(task):
    return Queue()["waiter"].signal("packed", GIVEN)


@handler("absurd.send-in-a-loop")
async def send_in_a_loop(task):
    return await Queue()["waiter"].asignal("packed", GIVEN)


class AbsurdTestCase:
    def setUp(self):
        steps_run.clear()
        self.now = timezone.now()

    def submit(self, type, data=None, key="waiter"):
        self.handle = Queue().submit(key, f"absurd.{type}", data)
        return self.handle

    def drained(self, after=timedelta()):
        """The word and the result of each attempt that is due after a time."""
        return [(run.word, run.result) for run in drain(now=self.now + after)]

    def status(self):
        return self.handle.metadata().status


class EventTests(AbsurdTestCase, TestCase):
    def assert_flows(self, type):
        handle = self.submit(type, 60)
        self.assertEqual(self.drained(), [("suspended", None)])
        self.assertEqual((self.status(), handle.why_waiting().name), ("blocked", "packed"))
        handle.signal("packed", GIVEN)
        self.assertEqual(self.drained(), [("finished", GIVEN)])

    def test_await_and_emit_event_flow(self):
        self.assert_flows("wait")

    def test_async_await_event_suspends_then_top_level_emit_resumes(self):
        self.assert_flows("wait-in-a-loop")

    def test_emit_before_await_returns_immediately_no_suspend(self):
        self.submit("wait").signal("packed", GIVEN)
        self.assertEqual(self.drained(), [("finished", GIVEN)])

    def test_event_already_present_returns_no_timeout_before_deadline(self):
        self.submit("wait", 60).signal("packed", GIVEN)
        self.assertEqual(self.drained(), [("finished", GIVEN)])

    def test_first_emit_per_name_wins(self):
        handle = self.submit("wait")
        handle.signal("packed", "first")
        handle.signal("packed", "second", on_conflict="ignore")
        self.assertEqual(self.drained(), [("finished", "first")])

    def test_multiple_tasks_can_await_the_same_event(self):
        """Here each is sent its own, all in one transaction."""
        handles = [self.submit("wait", key=f"w{number}") for number in range(3)]
        self.assertEqual(self.drained(), [("suspended", None)] * 3)
        with transaction.atomic():
            for handle in handles:
                handle.signal("packed", GIVEN)
        self.assertEqual(self.drained(), [("finished", GIVEN)] * 3)

    def test_in_task_emit_event_wakes_a_separately_enqueued_waiter(self):
        for type_ in ("send", "send-in-a-loop"):
            with self.subTest(type_):
                self.submit("wait")
                self.drained()
                self.submit(type_, key="sender")
                self.assertEqual(self.drained(), [("finished", True), ("finished", GIVEN)])
                Queue().clear()

    def test_event_timeout_wakes_sleeping_run(self):
        self.submit("wait", 600)
        self.drained()
        self.assertEqual(self.handle.metadata().ticket.timer_at, self.now + timedelta(minutes=10))
        self.assertEqual(self.drained(timedelta(seconds=599)), [])
        self.assertEqual(self.drained(timedelta(seconds=601)), [("finished", None)])

    def test_an_await_event_timeout_fires_after_shifting_past_it(self):
        self.submit("wait", WEEK.total_seconds())
        self.drained()
        self.assertEqual(self.drained(timedelta(days=8)), [("finished", None)])

    def test_await_event_timeout_does_not_recreate_wait(self):
        self.submit("wait", 10)
        self.drained()
        before = Step.objects.values_list("pk", "until").get()
        self.assertEqual(self.drained(timedelta(seconds=15)), [("finished", None)])
        self.assertEqual(Step.objects.values_list("pk", "until").get(), before)

    def test_a_timeout_of_nothing(self):
        self.submit("wait", 0)
        self.assertEqual(self.drained(), [("finished", None)])

    def test_cancel_prevents_await_event(self):
        self.submit("wait")
        task = Queue().poll()
        self.handle.cancel_request()
        with self.assertRaises(SuspendedError):
            task.wait_for("packed")
        self.assertEqual((self.status(), Step.objects.count()), ("cancelled", 0))

    def test_cancel_sleeping_task(self):
        self.submit("wait", 300)
        self.drained()
        self.handle.cancel_request()
        self.assertEqual(self.status(), "cancelled")
        self.assertEqual(self.drained(timedelta(hours=1)), [])


class RaceTests(AbsurdTestCase, TransactionTestCase):
    @skipUnlessDBFeature("has_select_for_update")
    def test_await_emit_event_race_does_not_lose_wakeup(self):
        """The event is there, not yet committed, while the wait is written."""
        self.submit("wait")
        task = Queue().poll()

        def begin_to_wait():
            with self.assertRaises(SuspendedError):
                task.wait_for("packed")

        with transaction.atomic():
            self.handle.signal("packed", GIVEN)
            elsewhere(begin_to_wait)
        self.assertEqual(self.drained(), [("finished", GIVEN)])


class SleepTests(AbsurdTestCase, TestCase):
    def test_sleep_for_suspends_then_resumes_replaying_step(self):
        for type_ in ("sleep", "sleep-in-a-loop"):
            with self.subTest(type_):
                steps_run.clear()
                self.submit(type_)
                self.assertEqual(self.drained(), [("suspended", None)])
                self.assertEqual(self.status(), "scheduled")
                self.assertEqual(self.drained(WEEK), [("finished", 1)])
                self.assertEqual(steps_run, [1])
                Queue().clear()

    def test_sleep_until_suspends_then_resumes(self):
        for type_ in ("sleep-until", "sleep-until-in-a-loop"):
            with self.subTest(type_):
                self.submit(type_)
                self.assertEqual(self.drained(), [("suspended", None)])
                self.assertEqual(self.drained(WEEK + timedelta(minutes=1)), [("finished", "woke")])
                Queue().clear()

    def test_sleep_until_checkpoint_prevents_re_scheduling_when_wake_time_passed(self):
        self.submit("sleep-until")
        self.drained()
        until = Step.objects.get().until
        self.assertEqual(until, self.handle.metadata().created_at + WEEK)
        self.assertEqual(
            [(run.word, run.result) for run in drain(now=until)], [("finished", "woke")]
        )

    def test_schedule_run_moves_task_between_running_and_sleeping(self):
        self.submit("sleep")
        self.drained()
        ticket = self.handle.metadata().ticket
        self.assertEqual((ticket.timer_at, ticket.holder), (self.now + WEEK, None))
        task = Queue().poll(now=self.now + WEEK)
        self.assertEqual((task.attempt, self.status()), (1, "running"))

    def test_claim_timeout_releases_run_to_new_worker(self):
        """What the first one had kept stays."""
        self.submit("sleep")
        Queue().poll(alive_time=30).step("bump", lambda: 7)
        self.assertEqual(self.drained(timedelta(minutes=5)), [("suspended", None)])
        self.assertEqual(self.drained(2 * WEEK), [("finished", 7)])

    def test_shifting_short_of_the_wake_leaves_the_task_sleeping(self):
        self.submit("sleep")
        self.drained()
        self.assertEqual(self.drained(timedelta(days=6)), [])
        self.assertEqual(self.status(), "scheduled")

    def test_a_chain_of_two_sleeps_needs_two_shifts(self):
        self.submit("sleep-twice")
        self.drained()
        self.assertEqual(self.drained(WEEK), [("suspended", None)])
        self.assertEqual(self.drained(WEEK + timedelta(days=2)), [])
        self.assertEqual(self.drained(WEEK + timedelta(days=3)), [("finished", "woke-twice")])

    def test_a_week_across_a_change_of_summer_time_is_a_week(self):
        self.now = datetime(2030, 3, 10, 1, 30, tzinfo=ZoneInfo("America/Chicago"))
        Queue().submit("waiter", "absurd.sleep", now=self.now)
        self.assertEqual(self.drained(), [("suspended", None)])
        until = self.now.astimezone(ZoneInfo("UTC")) + WEEK
        self.assertEqual(Step.objects.get(kind=Step.Kind.SLEEP).until, until)

    def test_durable_context_outside_a_task_raises(self):
        with self.assertRaises(NotSupportedError):
            pq.wait_for("packed")

    def test_suspend_logged_as_lifecycle_not_failure(self):
        self.submit("sleep")
        with self.assertLogs("django_perfectqueue.runner", "INFO") as logged:
            self.drained()
        self.assertEqual([record.levelname for record in logged.records], ["INFO"])
        self.assertIn("Task suspended.", logged.output[0])
