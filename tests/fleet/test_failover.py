"""A PostgreSQL primary is lost, and its standby takes its place."""

import contextlib
import threading
import unittest
from collections import Counter

from django.db import connection
from django.test import tag

from django_perfectqueue import store
from django_perfectqueue.models import Attempt, Task, Ticket
from django_perfectqueue.queue import Queue

from ..databases import UnavailableError
from ..factories import acquire, finish, submit, submit_many
from ..waiting import wait_until
from .case import PATIENCE, FleetTestCase, migrate, moved_to
from .replication import Pair

TASKS = 240
LOST = 100
SETTINGS = {"ALIVE_TIME": 3.0, "TASK_PREFETCH": 0}


@tag("thorough")
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
        self.wait_until_reported("end", TASKS // 6)
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

    def test_a_task_runs_again_whose_acquire_the_standby_never_heard_of(self):
        """
        An acquire does not wait for its commit to be safe; its holder learns that it was lost.

        What else was confirmed by the primary alone is lost, as it would be by asynchronous
        replication.
        """
        self.visit("k0")
        self.pair.standby.stop()
        connection.cursor().execute("SET synchronous_commit TO local")
        self.visit("unheard", waiting=False)
        Queue()["unheard"].cancel_request()
        worker = self.worker_at(self.pair.url, **SETTINGS)
        self.wait_until_reported("start", 1)
        self.pair.fail_over()

        with self.assertLogs("django_perfectqueue.database", "WARNING"):
            self.assertFalse(Queue()["unheard"].exists())
        self.wait_until_reported("start", 2)
        self.open_gates(["k0"])
        wait_until(lambda: self.finished() == {"k0"}, within=PATIENCE)
        task = Task.objects.get()
        self.assertEqual((task.attempt, len(self.reported("start"))), (1, 2))
        self.assertFalse(Attempt.objects.exists())
        self.assertEqual((len(self.reported("reported")), len(self.reported("refused"))), (1, 1))
        self.assertNotIn("Traceback", worker.errors)

    def test_the_holder_of_a_lost_task_does_not_hold_another_that_got_its_id(self):
        """The standby gives out again the ids that it never heard of."""
        submit("kept", now=None)
        self.pair.standby.stop()
        connection.cursor().execute("SET synchronous_commit TO local")
        submit_many(LOST, now=None)
        held = {lease.task_id: lease for lease in acquire(LOST + 1, now=None)}
        self.pair.fail_over()
        with self.assertLogs("django_perfectqueue.database", "WARNING"):
            submit("first", now=None)
        submit_many(LOST, now=None)

        waiting = set(Task.objects.in_status("waiting").values_list("id", flat=True))
        given_again = [held[task_id] for task_id in waiting & held.keys()]
        self.assertGreater(len(given_again), 1)
        pulses = store.leases.heartbeat(given_again, alive_time=60, using="default")
        self.assertEqual({pulse.held for pulse in pulses}, {False})
        self.assertEqual(len(finish(*given_again, now=None)), len(given_again))
        self.assertEqual(len(acquire(2 * LOST, now=None)), len(waiting))

    def runs(self):
        return Counter(entry.key for entry in self.reported("start"))

    def finished(self):
        return set(Task.objects.filter(outcome="finished").values_list("key", flat=True))
