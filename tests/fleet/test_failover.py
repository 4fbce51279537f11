"""A PostgreSQL primary is lost, and its standby takes its place."""

import contextlib
import threading
import unittest
from collections import Counter

from django.db import connection

from django_perfectqueue.models import Attempt, Task, Ticket
from django_perfectqueue.queue import Queue

from ..databases import UnavailableError
from ..waiting import wait_until
from .case import PATIENCE, FleetTestCase, migrate, moved_to
from .replication import Pair

TASKS = 240
SETTINGS = {"ALIVE_TIME": 3.0, "TASK_PREFETCH": 0}


@unittest.skipUnless(connection.vendor == "postgresql", "Only PostgreSQL replicates so.")
class FailoverTests(FleetTestCase):
    def setUp(self):
        super().setUp()
        try:
            self.pair = Pair()
        except UnavailableError as error:
            raise unittest.SkipTest(str(error)) from error
        self.addCleanup(self.pair.remove)
        self.pair.start()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        stack.enter_context(moved_to(self.pair.url))
        migrate()

    def test_nothing_that_was_confirmed_is_lost_and_nothing_finished_runs_again(self):
        """
        The standby is synchronous; programs submit and workers run through the failover.
        """
        worker = self.worker_at(self.pair.url, PROCESSORS=2, **SETTINGS)
        keys = [f"k{number}" for number in range(TASKS)]
        for key in keys[: TASKS // 3]:
            self.visit(key, waiting=False)
        self.wait_until_told("end", TASKS // 6)
        runs, finished = self.runs(), self.finished()

        loss = threading.Thread(target=self.pair.fail_over)
        loss.start()
        with self.assertLogs("django_perfectqueue.database", "WARNING"):
            for key in keys[TASKS // 3 :]:
                self.visit(key, waiting=False)
        loss.join()
        wait_until(lambda: len(self.finished()) == TASKS, within=PATIENCE)

        self.assertGreater(len(finished), 0)
        self.assertEqual({key: self.runs()[key] for key in finished}, dict.fromkeys(finished, 1))
        self.assertEqual(set(self.runs()), set(keys))
        self.assertFalse(Ticket.objects.exists())
        self.assertIn("The database is back", worker.errors)
        self.assertNotIn("Traceback", worker.errors)
        self.assertLessEqual(sum(runs.values()), TASKS)

    def test_a_handler_runs_on_whose_acquire_the_standby_never_heard_of(self):
        """
        An acquire does not wait for its commit to be safe; its holder takes the task back.

        What else was confirmed by the primary alone is lost, as it would be by asynchronous
        replication.
        """
        self.visit("k0")
        self.pair.standby.stop()
        connection.cursor().execute("SET synchronous_commit TO local")
        self.visit("unheard", waiting=False)
        Queue()["unheard"].cancel_request()
        worker = self.worker_at(self.pair.url, **SETTINGS)
        [begun] = self.wait_until_told("start", 1)
        self.pair.fail_over()

        with self.assertLogs("django_perfectqueue.database", "WARNING"):
            self.assertFalse(Queue()["unheard"].exists())
        wait_until(self.is_held_again, within=PATIENCE)
        self.open_gates(["k0"])
        wait_until(lambda: self.finished() == {"k0"}, within=PATIENCE)
        task = Task.objects.get()
        self.assertEqual((task.attempt, len(self.told("start"))), (1, 1))
        self.assertTrue(task.worker.endswith(f":{begun.pid}"))
        self.assertFalse(Attempt.objects.exists())
        self.assertNotIn("Traceback", worker.errors)

    def runs(self):
        return Counter(entry.key for entry in self.told("start"))

    def finished(self):
        return set(Task.objects.filter(outcome="finished").values_list("key", flat=True))

    def is_held_again(self):
        return Task.objects.get(key="k0").status == "running"
