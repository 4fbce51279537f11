"""Schedules and real workers."""

from django.test import TransactionTestCase, tag

from django_perfectqueue.models import Schedule, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules

from ..waiting import LONG, wait_until
from ..worker.workers import WorkerTestCase


class ProgramTests(TransactionTestCase):
    def test_a_program_that_waits_for_tasks_submits_what_is_due(self):
        Schedules().put("beat", "report", every=1)
        Queue().poll(LONG).finish()
        self.assertEqual(Schedule.objects.get().fired, 1)


class WorkerTests(WorkerTestCase):
    def finished(self, name):
        return Task.objects.filter(key__startswith=f"{name}@", outcome="finished").count()

    def test_a_worker_submits_and_runs_what_is_due(self):
        """It hears of a schedule that is put while it waits: no look is due for minutes."""
        self.worker(POLL_INTERVAL=300.0).ready()
        Schedules().put("beat", "report", every=1, overlap="allow")
        wait_until(lambda: self.finished("beat") >= 3)

    def test_while_all_processors_are_busy_the_janitor_submits(self):
        self.submit("long")
        self.worker("--processors", "1").ready()
        wait_until(lambda: self.status("long") == "running")
        Schedules().put("beat", "report", every=1, overlap="allow", catch_up=None)
        wait_until(lambda: Schedule.objects.get().fired >= 1)
        self.assertEqual(self.finished("beat"), 0)
        self.open_gate()
        wait_until(lambda: self.finished("beat") >= 1)

    @tag("thorough")
    def test_two_workers_submit_each_tick_once(self):
        for _number in range(2):
            self.worker().ready()
        schedule = Schedules().put("beat", "report", every=1, overlap="allow", catch_up=None)
        first = schedule.row().next_at
        wait_until(lambda: self.finished("beat") >= 4)
        schedule.pause()
        row = schedule.row()
        ticks = round((row.last_at - first).total_seconds()) + 1
        self.assertEqual(Task.objects.filter(key__startswith="beat@").count(), ticks)
        self.assertEqual(row.fired, ticks)
