"""What becomes of ticks that are late, that meet the task before, or whose schedule is broken."""

from datetime import timedelta
from unittest import mock

from django.db import IntegrityError
from django.test import TransactionTestCase

from django_perfectqueue.exceptions import CancelRequestedError
from django_perfectqueue.models import Schedule, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.store import schedules

from ..factories import at
from .test_schedules import HOUR, MINUTE, NOON, Case

SECOND = timedelta(seconds=1)


class MissedTests(Case):
    def test_of_missed_ticks_the_latest_is_submitted_and_the_others_counted(self):
        schedule = self.put(overlap="allow")
        self.fire(NOON + 5.5 * MINUTE)
        self.assertEqual(self.ticks(), [5])
        self.assertEqual(schedule.row().skipped_late, 4)

    def test_catch_up_is_how_many_are_submitted_beside_it(self):
        self.put(overlap="allow", catch_up=2)
        self.fire(NOON + 5.5 * MINUTE)
        self.assertEqual(self.ticks(), [3, 4, 5])

    def test_without_a_bound_all_are_submitted(self):
        schedule = self.put(overlap="allow", catch_up=None)
        self.fire(NOON + 20 * HOUR)
        self.assertEqual(self.ticks(), list(range(1, 1201)))
        self.assertEqual((schedule.row().fired, schedule.row().skipped_late), (1200, 0))

    def test_what_is_later_than_the_deadline_is_dropped_and_counted(self):
        schedule = self.put(overlap="allow", catch_up=9, deadline=90)
        self.fire(NOON + 5.75 * MINUTE)
        self.assertEqual(self.ticks(), [5])
        self.fire(NOON + 59.99 * MINUTE)
        self.assertEqual(self.ticks(), [5, 59])
        self.assertEqual(schedule.row().skipped_late, 4 + 53)

    def test_a_clock_that_goes_back_fires_nothing_twice(self):
        self.put(overlap="allow")
        for minute in (3, 1, 2, 3, 4):
            self.fire(NOON + minute * MINUTE)
        self.assertEqual(self.ticks(), [3, 4])

    def test_it_ends_after_so_many_tasks_and_after_its_end(self):
        counted = self.put("a", overlap="allow", remaining=2, catch_up=None)
        ended = self.put("b", overlap="allow", ends_at=NOON + 2 * MINUTE, catch_up=None)
        begun = self.put("c", overlap="allow", starts_at=NOON + 4.5 * MINUTE)
        self.fire(NOON + 5 * MINUTE)
        self.assertEqual(self.ticks("a"), [1, 2])
        self.assertEqual(self.ticks("b"), [1, 2])
        self.assertEqual(self.ticks("c"), [4.5])
        self.assertEqual([one.row().state for one in (counted, ended, begun)],
                         ["ended", "ended", "active"])  # fmt: skip

    def test_one_that_has_ended_begins_anew_when_it_may_submit_more(self):
        schedule = self.put(overlap="allow", remaining=1)
        self.fire(NOON + MINUTE)
        self.assertEqual(schedule.row().state, "ended")
        schedule.change(remaining=1, now=NOON + 5 * MINUTE)
        self.fire(NOON + 9 * MINUTE)
        self.assertEqual(self.ticks(), [1, 9])

    def test_delay_and_jitter_move_the_task_and_not_the_tick(self):
        schedule = self.put(delay=20, jitter=10)
        due = schedule.next(1)[0]
        self.assertGreaterEqual(due, NOON + MINUTE + 20 * SECOND)
        self.assertLess(due, NOON + MINUTE + 30 * SECOND)
        self.fire(due - timedelta(milliseconds=1))
        self.assertEqual(self.ticks(), [])
        self.fire(due)
        self.assertEqual(self.ticks(), [1])


class OverlapTests(Case):
    def after_two_ticks(self, overlap):
        schedule = self.put(overlap=overlap)
        for minute in (1, 2, 3):
            self.fire(NOON + minute * MINUTE)
        return schedule

    def test_skip_counts_ticks_while_the_task_before_has_yet_to_end(self):
        schedule = self.after_two_ticks("skip")
        self.assertEqual(self.ticks(), [1])
        self.assertEqual(schedule.row().skipped_overlap, 2)
        self.end(NOON + 3.5 * MINUTE)
        self.fire(NOON + 4 * MINUTE)
        self.assertEqual(self.ticks(), [1, 4])

    def test_allow_submits_them(self):
        self.after_two_ticks("allow")
        self.assertEqual(self.ticks(), [1, 2, 3])

    def test_queue_one_lets_the_first_wait(self):
        schedule = self.after_two_ticks("queue_one")
        self.assertEqual(self.ticks(), [1])
        self.assertEqual(schedule.row().skipped_overlap, 1)
        self.end(NOON + 3 * MINUTE)
        self.fire(NOON + 3 * MINUTE + SECOND)
        self.assertEqual(self.ticks(), [1, 2])
        self.assertEqual(schedule.row().pending, [])

    def test_queue_lets_all_wait_and_runs_them_one_by_one(self):
        schedule = self.after_two_ticks("queue")
        for second, expected in ((1, [1, 2]), (2, [1, 2, 3]), (3, [1, 2, 3])):
            self.end(NOON + 3 * MINUTE + second * SECOND)
            self.fire(NOON + 3 * MINUTE + second * SECOND)
            self.assertEqual(self.ticks(), expected)
        self.assertEqual(schedule.row().skipped_overlap, 0)

    def test_the_ticks_that_wait_go_with_a_pause(self):
        schedule = self.after_two_ticks("queue")
        schedule.pause(now=NOON + 3 * MINUTE)
        self.end(NOON + 3 * MINUTE)
        self.fire(NOON + 9 * MINUTE)
        self.assertEqual(self.ticks(), [1])

    def test_the_ticks_that_wait_are_submitted_where_overlap_is_allowed_now(self):
        schedule = self.after_two_ticks("queue")
        schedule.change(overlap="allow", now=NOON + 3 * MINUTE)
        self.fire(NOON + 3 * MINUTE + SECOND)
        self.assertEqual(self.ticks(), [1, 2, 3])
        self.assertEqual(schedule.row().due_at, NOON + 4 * MINUTE)

    def test_a_change_leaves_the_ticks_that_wait(self):
        schedule = self.after_two_ticks("queue")
        schedule.change(priority=3, now=NOON + 3 * MINUTE)
        self.assertEqual(len(schedule.row().pending), 2)
        self.assertEqual(schedule.row().due_at, NOON + 3 * MINUTE + SECOND)

    def test_cancel_lets_the_latest_wait_until_the_task_before_has_ended(self):
        schedule = self.after_two_ticks("cancel")
        self.assertEqual(self.ticks(), [1])
        self.assertEqual(schedule.row().skipped_overlap, 1)
        self.end(NOON + 3 * MINUTE)
        self.fire(NOON + 3 * MINUTE + SECOND)
        self.assertEqual(self.ticks(), [1, 3])
        self.assertEqual(schedule.row().pending, [])

    def test_so_many_failures_in_a_row_pause_it(self):
        schedule = self.put(pause_after=2)
        for minute, ending in enumerate(("fail", "finish", "fail", "fail"), 1):
            self.fire(NOON + minute * MINUTE)
            (task,) = Queue().acquire(now=NOON + minute * MINUTE)
            getattr(task, ending)()
        self.assertEqual(schedule.row().state, "active")
        self.fire(NOON + 5 * MINUTE)
        row = schedule.row()
        self.assertEqual((row.state, self.ticks()), ("paused", [1, 2, 3, 4]))
        self.assertIn("2 tasks in a row", row.note)
        schedule.unpause(now=NOON + 6 * MINUTE)
        self.fire(NOON + 7 * MINUTE)
        self.assertEqual(self.ticks(), [1, 2, 3, 4, 7])


class CancelTests(TransactionTestCase):
    put, fire, ticks = Case.put, Case.fire, Case.ticks
    setUp = Case.setUp

    def statuses(self):
        return [*Task.objects.with_status().order_by("key").values_list("status", flat=True)]

    def test_the_task_before_is_cancelled_and_then_the_next_submitted(self):
        self.put(overlap="cancel")
        self.fire(NOON + MINUTE)
        self.fire(NOON + 2 * MINUTE)
        self.assertEqual(self.statuses(), ["cancelled"])
        self.fire(NOON + 2 * MINUTE + SECOND)
        self.assertEqual(self.statuses(), ["cancelled", "waiting"])

    def test_a_request_that_was_lost_is_made_again(self):
        self.put(overlap="cancel")
        self.fire(NOON + MINUTE)
        (task,) = Queue().acquire(now=NOON + MINUTE)
        with mock.patch.object(schedules, "cancel_each"):  # Its process dies before it asks.
            self.fire(NOON + 2 * MINUTE)
        at(task, NOON + 2 * MINUTE).heartbeat()
        self.fire(NOON + 2 * MINUTE + SECOND)
        with self.assertRaises(CancelRequestedError):
            at(task, NOON + 2 * MINUTE + SECOND).heartbeat()


class BrokenTests(Case):
    def test_a_key_that_another_task_has_is_a_problem_and_loses_no_tick(self):
        schedule, _other = self.put("broken", overlap="allow", catch_up=1), self.put("good")
        key = schedules.key_of("broken", NOON + MINUTE)
        Queue().submit(key, "t", run_at=NOON + HOUR)
        with self.assertLogs("django_perfectqueue.schedules", "ERROR"):
            self.fire(NOON + MINUTE)
        self.assertIn(f"Another task has the key of a tick: '{key}'", schedule.row().problem)
        self.assertEqual((schedule.row().fired, self.ticks("good")), (0, [1]))
        Queue().clear()
        self.fire(NOON + 2 * MINUTE + SECOND)
        self.assertEqual((schedule.row().problem, self.ticks("broken")), ("", [1, 2]))

    def test_a_broken_one_is_set_aside_with_its_problem_and_holds_up_no_other(self):
        broken, good = self.put("broken"), self.put("good")
        Schedule.objects.filter(name="broken").update(
            cron="0 0 * * *", every=None, timezone="Mars/Olympus"
        )
        self.fire(NOON + MINUTE)
        self.assertEqual((self.ticks("broken"), self.ticks("good")), ([], [1]))
        self.assertEqual(broken.row().state, "broken")
        self.assertIn("Mars/Olympus", broken.row().problem)
        self.assertEqual(good.row().problem, "")
        broken.change(timezone="UTC", now=NOON + 2 * MINUTE)
        self.assertEqual(broken.row().state, "active")
        self.assertEqual(broken.row().next_at, NOON + 12 * HOUR)

    def test_one_that_can_not_be_stored_holds_up_no_other(self):
        for error in (IntegrityError("no"), ValueError("no")):
            with self.subTest(error=error):
                self.check_one_that_fails(error)
                Schedule.objects.all().delete()
                Queue().clear()

    def check_one_that_fails(self, error):
        self.put("broken", priority=5)
        self.put("good")
        real = schedules.submit

        def submit(tasks, **options):
            stored = real(tasks, **options)
            if any(task.priority == 5 for task in tasks):
                raise error
            return stored

        with mock.patch.object(schedules, "submit", submit):
            self.fire(NOON + MINUTE)
        self.assertEqual((self.ticks("broken"), self.ticks("good")), ([], [1]))
        self.assertEqual(self.schedules["broken"].row().problem, "no")
        self.fire(NOON + 2 * MINUTE)
        self.assertEqual((self.ticks("broken"), self.ticks("good")), ([2], [1]))


class SeedTests(Case):
    """What the ancestors' recurring jobs become."""

    def test_qless_interval_and_offset_are_every_and_starts_at(self):
        self.put(every=60, starts_at=NOON + 7 * SECOND, catch_up=None, overlap="allow")
        self.fire(NOON + 128 * SECOND)
        self.assertEqual([round(m * 60) for m in self.ticks()], [7, 67, 127])

    def test_qless_without_backlog_every_missed_interval_is_submitted(self):
        self.put(every=60, starts_at=NOON, catch_up=None, overlap="allow", now=NOON - SECOND)
        self.fire(NOON + 300 * SECOND)
        self.assertEqual(self.ticks(), [0, 1, 2, 3, 4, 5])

    def test_qless_backlog_is_catch_up(self):
        self.put(every=60, starts_at=NOON, catch_up=1, overlap="allow")
        self.fire(NOON + 600 * SECOND)
        self.assertEqual(self.ticks(), [9, 10])

    def test_qless_priority_and_type_are_copied_and_the_child_knows_its_moment(self):
        self.put(every=60, priority=4)
        self.fire(NOON + 61 * SECOND)
        (task,) = Queue().acquire(now=NOON + 62 * SECOND)
        self.assertEqual((task.lease.priority, task.scheduled_for), (4, NOON + MINUTE))

    def test_perfectsched_cron_delay_and_timezone(self):
        schedule = self.put(cron="0 3 * * *", delay=300, timezone="Asia/Tokyo")
        self.assertEqual(schedule.row().next_at, NOON.replace(hour=18))
        self.assertEqual(schedule.next(1), [NOON.replace(hour=18, minute=5)])

    def test_perfectsched_missed_occurrences_are_replayed_one_by_one(self):
        self.put(cron="*/10 * * * *", catch_up=None, overlap="queue")
        for _round in range(4):
            self.fire(NOON + 30 * MINUTE)
            self.end(NOON + 30 * MINUTE)
            Schedule.objects.exclude(pending=[]).update(due_at=NOON)
        self.assertEqual(self.ticks(), [10, 20, 30])
