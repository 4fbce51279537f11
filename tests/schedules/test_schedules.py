"""Schedules through their API: what is stored, what is fired, and when."""

from datetime import datetime, timedelta, timezone
from unittest import mock

from django.test import TestCase, override_settings

from django_perfectqueue.exceptions import InvalidScheduleError, NotFoundError
from django_perfectqueue.fairness import audit
from django_perfectqueue.models import Change, Schedule, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules

from ..factories import at, purge

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Case(TestCase):
    def setUp(self):
        self.schedules = Schedules()

    def put(self, name="s", type="report", now=NOON, **terms):
        if not {"cron", "every", "queue"} & set(terms):
            terms["every"] = 60
        return self.schedules.put(name, type, now=now, **terms)

    def fire(self, now):
        self.schedules.fire(now=now)

    def ticks(self, name="s"):
        """Return the ticks that have a task, as minutes after noon."""
        keys = Task.objects.filter(key__startswith=f"{name}@").order_by("key")
        return [
            (datetime.fromisoformat(key.split("@")[1][:-1] + "+00:00") - NOON) / MINUTE
            for key in keys.values_list("key", flat=True)
        ]

    def end(self, now):
        """Run what waits, successfully."""
        for task in Queue().acquire(100, now=now):
            task.finish()

    def fail_all(self, now):
        for task in Queue().acquire(100, now=now):
            task.fail()


class PutTests(Case):
    def test_it_submits_a_task_at_each_tick_and_no_tick_of_the_past(self):
        schedule = self.put(every="1m", overlap="allow", user="ann", priority=3)
        self.fire(NOON)
        self.assertEqual(self.ticks(), [])
        for minute in (1, 2, 2, 3):
            self.fire(NOON + minute * MINUTE)
        self.assertEqual(self.ticks(), [1, 2, 3])
        row = schedule.row()
        self.assertEqual((row.fired, row.state), (3, "active"))
        self.assertEqual(row.next_at, NOON + 4 * MINUTE)
        task = Queue()["s@2026-11-22T12:01:00Z"].metadata()
        self.assertEqual((task.user, task.priority, task.type), ("ann", 3, "report"))

    def test_its_tasks_have_what_a_submit_may_say_of_them(self):
        said = {"tags": ["a", "b"], "sequence": "line", "max_attempts": 2, "backoff": "10s,1m"}
        schedule = self.put(overlap="allow", **said)
        schedule.change(tags=["a"], by="ann")
        last = Change.objects.order_by("pk").last()
        self.assertEqual((last.before, last.after["tags"]), ({"tags": ["a", "b"]}, ["a"]))
        for minute in (1, 2):
            self.fire(NOON + minute * MINUTE)
        triggered = schedule.trigger(now=NOON + 3 * MINUTE)
        self.assertEqual(triggered.tags, ["a", "sequence:line"])
        first, later = Queue().acquire(9, now=NOON + 9 * MINUTE), triggered.metadata()
        self.assertEqual([task.key for task in first], ["s@2026-11-22T12:01:00Z"])
        self.assertEqual(later.status, "blocked")
        self.assertEqual(first[0].context["max_attempts"], 2)
        self.assertEqual(first[0].context["backoff"][0], "Steps")
        ticks = schedule.backfill(NOON + 5 * MINUTE, NOON + 6 * MINUTE, overlap="queue")
        self.assertEqual(len(ticks), 2)
        schedule.change(tags=(), sequence="", max_attempts=None, backoff=None)
        self.assertEqual(schedule.row().options, {})

    def test_what_a_submit_may_not_say_of_them_a_schedule_may_not(self):
        for bad in ({"tags": "abc"}, {"sequence": "x" * 51}, {"max_attempts": 0}, {"backoff": "x"}):
            with self.subTest(bad), self.assertRaises(InvalidScheduleError):
                self.put(**bad)
        self.assertFalse(Schedule.objects.exists())

    def test_a_task_knows_its_tick(self):
        self.put()
        self.fire(NOON + MINUTE + timedelta(seconds=3))
        (task,) = Queue().acquire(now=NOON + 2 * MINUTE)
        self.assertEqual(task.scheduled_for, NOON + MINUTE)
        Queue("other").submit("other", "report")
        (other,) = Queue("other").acquire()
        self.assertIsNone(other.scheduled_for)

    def test_a_put_changes_the_one_of_its_name_and_fires_nothing_of_the_past(self):
        self.put(every=60)
        self.put(every=3600, now=NOON + 30 * MINUTE)
        self.fire(NOON + 45 * MINUTE)
        self.assertEqual(self.ticks(), [])
        self.fire(NOON + 60 * MINUTE)
        self.assertEqual(self.ticks(), [60])
        self.assertEqual(Schedule.objects.count(), 1)

    def test_a_change_of_anything_else_leaves_the_cursor(self):
        schedule = self.put(every=60)
        schedule.change(priority=7, now=NOON + 30 * MINUTE)
        self.fire(NOON + 30 * MINUTE)
        self.assertEqual(self.ticks(), [30])
        self.assertEqual(Task.objects.get().priority, 7)

    def test_bad_terms_are_refused_with_the_nearest_right_word_and_nothing_is_stored(self):
        cases = [
            ({"every": 60, "timezone": "Europe/Zurch"}, "Did you mean 'Europe/Zurich'"),
            ({"cron": "0 0 30 2 *"}, "its months have no such day"),
            ({"cron": "61 * * * *"}, "Bad minute"),
            ({"cron": "@dayly"}, "Did you mean '@daily'"),
            ({"cron": "* * * *"}, "five fields"),
            ({"cron": "* * * * *", "every": 60}, "not both"),
            ({"queue": "default"}, "cron expression or an interval"),
            ({"every": 0.5}, "of at least 1 s"),
            ({"every": "soon"}, "a span such as"),
            ({"every": 60, "overlap": "skipp"}, "Did you mean 'skip'"),
            ({"every": 60, "overlapp": "skip"}, "Did you mean 'overlap'"),
            ({"every": 60, "remaining": 0}, "whole number from 1"),
            ({"every": 60, "catch_up": -1}, "from 0 to"),
            ({"every": 60, "catch_up": True}, "from 0 to"),
            ({"every": 60, "jitter": -1}, "of at least 0 s"),
            ({"every": 60, "user": "*"}, "No user"),
            ({"every": 60, "starts_at": datetime(2026, 1, 1)}, "aware"),  # noqa: DTZ001
            ({"every": 60, "starts_at": "2h", "ends_at": "1h"}, "before it starts"),
        ]
        for terms, words in cases:
            with self.subTest(terms=terms), self.assertRaises(InvalidScheduleError) as caught:
                self.put(**terms)
            self.assertIn(words, str(caught.exception))
        with self.assertRaisesMessage(InvalidScheduleError, "Did you mean 'report'"):
            self.put(type="reprot")
        with self.assertRaises(InvalidScheduleError):
            self.put(name="")
        self.assertFalse(Schedule.objects.exists())

    def test_the_settings_cap_the_schedules_of_a_user(self):
        with override_settings(PERFECTQUEUE={"SCHEDULES_PER_USER": 2}):
            for name in "ab":
                self.put(name=name, every=60, user="ann")
            with self.assertRaisesMessage(InvalidScheduleError, "SCHEDULES_PER_USER"):
                self.put(name="c", every=60, user="ann")
            self.put(name="a", every=90, user="ann")
            self.put(name="c", every=60, user="bob")
        self.assertEqual(Schedule.objects.count(), 3)


class SteerTests(Case):
    def test_a_paused_one_submits_nothing_and_makes_nothing_up(self):
        schedule = self.put()
        schedule.pause("Until it is right", by="ann", now=NOON)
        self.fire(NOON + 5 * MINUTE)
        row = schedule.row()
        self.assertEqual(
            (row.state, row.note, row.paused_by), ("paused", "Until it is right", "ann")
        )
        self.put(every=60, now=NOON + 5 * MINUTE)
        self.assertEqual(schedule.row().state, "paused")
        schedule.unpause(by="ann", now=NOON + 9 * MINUTE)
        self.fire(NOON + 9 * MINUTE)
        self.assertEqual(self.ticks(), [])
        self.fire(NOON + 10 * MINUTE)
        self.assertEqual(self.ticks(), [10])

    def test_who_did_what_is_recorded(self):
        schedule = self.put()
        schedule.pause("why", by="ann")
        schedule.delete(by="bob")
        found = Change.objects.filter(kind="sched").order_by("id")
        self.assertEqual(
            [(row.by, row.after["did"]) for row in found],
            [("", "added"), ("ann", "changed"), ("bob", "deleted")],
        )

    def test_of_each_the_last_changes_are_kept(self):
        schedule = self.put()
        self.put(name="other")
        with mock.patch.object(audit, "CHANGES_OF_ONE", 3):
            for number in range(5):
                schedule.pause(f"note {number}", by="x" * 300)
        found = Change.objects.filter(name="s").order_by("id")
        self.assertEqual([row.after["note"] for row in found], ["note 2", "note 3", "note 4"])
        self.assertEqual(Change.objects.filter(name="other").count(), 1)

    def test_run_now_submits_at_once_and_leaves_the_ticks(self):
        schedule = self.put(overlap="allow")
        task = schedule.trigger(now=NOON + 30 * timedelta(seconds=1))
        self.assertTrue(task.exists())
        self.fire(NOON + MINUTE)
        self.assertEqual(self.ticks(), [0.5, 1])

    def test_a_backfill_submits_the_ticks_of_a_range_that_have_no_task(self):
        schedule = self.put(overlap="allow")
        self.fire(NOON + MINUTE)
        terms = {"since": NOON - 2 * MINUTE, "until": NOON + 2 * MINUTE}
        dry = schedule.backfill(**terms, dry_run=True)
        self.assertEqual(self.ticks(), [1])
        self.assertEqual(schedule.backfill(**terms), dry)
        self.assertEqual(self.ticks(), [-2, -1, 0, 1, 2])
        self.assertEqual(schedule.backfill(**terms), [])
        self.fire(NOON + 2 * MINUTE)
        self.assertEqual(self.ticks(), [-2, -1, 0, 1, 2])
        with self.assertRaisesMessage(InvalidScheduleError, "more than 1000"):
            schedule.backfill(NOON - 48 * HOUR, NOON)

    def test_a_tick_that_a_backfill_has_submitted_is_counted_once(self):
        schedule = self.put(overlap="allow", catch_up=None)
        schedule.backfill(NOON + MINUTE, NOON + 2 * MINUTE, now=NOON)
        before = schedule.row().fired
        self.fire(NOON + 3 * MINUTE)
        self.assertEqual(self.ticks(), [1, 2, 3])
        self.assertEqual(schedule.row().fired, before + 1)

    def test_a_task_expires_so_long_after_it_was_submitted_and_not_after_its_tick(self):
        self.put(expires_after=30)
        self.fire(NOON + 2 * MINUTE - timedelta(seconds=1))
        self.assertEqual(Task.objects.get().expires_at, NOON + 2 * MINUTE + timedelta(seconds=29))

    def test_a_last_task_that_was_purged_has_not_failed(self):
        """Only tasks that have finished are purged before the next tick."""
        schedule = self.put(pause_after=2)
        self.fire(NOON + MINUTE)
        self.fail_all(NOON + MINUTE)
        self.fire(NOON + 2 * MINUTE)
        self.assertEqual(schedule.row().failures, 1)
        self.end(NOON + 2 * MINUTE)
        purge({"finished": 0.0}, now=None)
        self.assertEqual(self.ticks(), [1])
        self.fire(NOON + 3 * MINUTE)
        self.assertEqual(schedule.row().failures, 0)

    def test_the_tasks_of_a_backfill_may_run_one_after_another(self):
        schedule = self.put(every=HOUR)
        schedule.backfill(NOON - 3 * HOUR, NOON - HOUR, overlap="queue", now=NOON)
        for _tick in range(3):
            (task,) = Queue().acquire(5, now=NOON)
            at(task, NOON).fail()
        with self.assertRaisesMessage(InvalidScheduleError, "one of 'allow', 'queue', not 'skip'"):
            schedule.backfill(NOON - HOUR, NOON, overlap="skip")

    def test_the_last_tasks_are_its_own(self):
        schedule = self.put("a", overlap="allow")
        self.put("a@2b", overlap="allow")
        Queue().submit("a@home", "report")
        self.fire(NOON + MINUTE)
        self.assertEqual([task.key for task in schedule.last()], ["a@2026-11-22T12:01:00Z"])

    def test_next_and_last_show_what_comes_and_what_was(self):
        schedule = self.put(overlap="allow")
        self.put(name="s2", every=60)
        self.assertEqual(schedule.next(2), [NOON + MINUTE, NOON + 2 * MINUTE])
        self.fire(NOON + MINUTE)
        self.fire(NOON + 2 * MINUTE)
        self.assertEqual(
            [task.key for task in schedule.last()],
            ["s@2026-11-22T12:02:00Z", "s@2026-11-22T12:01:00Z"],
        )

    def test_what_is_not_there_is_said_with_the_nearest_name(self):
        self.put(name="nightly")
        with self.assertRaisesMessage(NotFoundError, "Did you mean 'nightly'"):
            self.schedules["nightli"].pause()
        for act in ("row", "unpause", "trigger", "next", "delete"):
            with self.subTest(act=act), self.assertRaises(NotFoundError):
                getattr(self.schedules["x"], act)()

    async def test_there_are_async_twins(self):
        handle = await self.schedules.aput("s", "report", every=60)
        await handle.apause("why")
        row = await self.schedules.aget("s")
        self.assertEqual(row.state, "paused")
        await handle.adelete()
        self.assertFalse(await handle.aexists())
