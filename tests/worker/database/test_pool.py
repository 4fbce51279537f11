"""Workers with psycopg's connection pool: no process may share one with another."""

import os
import signal
from importlib import util
from unittest import skipUnless

from django.db import connection

from django_perfectqueue.models import Task

from ...waiting import wait_until
from ..workers import WorkerTestCase

HAS_POOL = connection.vendor == "postgresql" and util.find_spec("psycopg_pool") is not None


def has_psycopg_3():
    return connection.vendor == "postgresql" and connection.Database.__name__ == "psycopg"


@skipUnless(has_psycopg_3() and HAS_POOL, "This takes PostgreSQL, psycopg 3 and psycopg_pool.")
class PoolTests(WorkerTestCase):
    def test_tasks_are_run_by_processes_that_come_and_go(self):
        for number in range(30):
            self.submit(f"k{number}", "note", user=f"u{number % 3}")
        self.submit("dies", "die-once")
        worker = self.burst("--processors", "2", POOL=True, RECYCLE={"tasks": 5})

        self.assertEqual(Task.objects.filter(outcome="finished").count(), 31)
        self.assertGreater(len(worker.processors()), 6)
        self.assertNotIn("Traceback", worker.errors)
        self.assertNotIn("The database is away", worker.errors)

    def test_threads_do_not_share_a_pool_smaller_than_they_are_many(self):
        for number in range(60):
            self.submit(f"k{number}", "note")
        worker = self.burst(
            "--processor-type", "thread", "--concurrency", "12",
            POOL={"min_size": 1, "max_size": 2, "timeout": 1},
        )  # fmt: skip

        self.assertEqual(Task.objects.filter(outcome="finished").count(), 60)
        self.assertIn("60 finished, 0 retried, 0 failed", worker.output)
        self.assertNotIn("database", worker.errors)

    def test_a_processor_and_its_heartbeats_have_connections_of_their_own(self):
        for number in range(2):
            self.submit(f"k{number}")
        worker = self.worker(POOL=True, ALIVE_TIME=2, TASK_PREFETCH=1)
        pid = self.wait_for_note("start")
        os.kill(pid, signal.SIGKILL)
        self.wait_for_note("start", 2)
        renewed = self.lease_of("k0")
        wait_until(lambda: self.lease_of("k0") > renewed)

        self.open_gate()
        for number in range(2):
            self.wait_for_status(f"k{number}", "finished")
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0, worker.errors)
        self.assertNotIn("Traceback", worker.errors)

    def lease_of(self, key):
        return Task.objects.select_related("ticket").get(key=key).ticket.timer_at
