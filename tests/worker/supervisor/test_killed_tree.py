"""All processes of a worker are killed at once: its tasks run again soon."""

import contextlib
import os
import signal
import time
import unittest

from django.db import connection
from django.test import SimpleTestCase, override_settings, tag

from django_perfectqueue import conf
from django_perfectqueue.lib import processes
from django_perfectqueue.models import Attempt, State, Ticket, Worker
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.queue import Queue

from ...fleet.disguise import pretended
from ...management.running import refused, run
from ...waiting import wait_until
from ..workers import WorkerTestCase

KEYS = ("k0", "k1")
FAR = 300.0
"""A lease that outlasts the test: what runs again was given back."""


def kill_all(pids):
    """
    Kill processes as at one moment: none may act on the end of another.

    Children go first: the kernel continues stopped ones whose parent dies.
    """
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in sorted(pids, reverse=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)


@override_settings(PERFECTQUEUE={"ALIVE_TIME": FAR})
class KilledTreeTests(WorkerTestCase):
    def setUp(self):
        super().setUp()
        lease = conf.options().ALIVE_TIME
        self.settings = {"PROCESSORS": 2, "TASK_PREFETCH": 0, "ALIVE_TIME": lease}

    def busy_worker(self, **options):
        """Return a worker that runs two tasks, as its entry says."""
        worker = self.worker(**self.settings, **options)
        for key in KEYS:
            self.submit(key)
        self.wait_for_note("start", 2)

        def is_entered():
            holders = set(Ticket.objects.values_list("holder", flat=True))
            states = [state for row in Worker.objects.all() for state in row.states]
            return holders <= {state["holder"] for state in states}

        wait_until(is_entered)
        return worker

    def killed_worker(self, **options):
        worker = self.busy_worker(**options)
        kill_all(worker.alive())
        worker.process.wait()
        wait_until(lambda: not worker.alive())
        return worker

    def test_the_next_worker_of_the_host_gives_back_what_it_held(self):
        self.killed_worker()
        worker = self.worker(**self.settings)
        self.wait_for_note("start", 4)
        wait_until(lambda: "Tasks of a dead worker are given back." in worker.errors)
        self.open_gate()
        for key in KEYS:
            self.wait_for_status(key, "finished")
        self.assertEqual({one.ending for one in Attempt.objects.all()}, {"lost"})
        self.assertEqual(Worker.objects.count(), 1)

    def test_a_processor_that_outlives_its_supervisor_keeps_its_task(self):
        worker = self.busy_worker()
        left = worker.processors()
        kill_all(set(worker.alive()) - {left[1]})
        self.worker(**self.settings)
        self.wait_for_note("start", 3)
        self.assertEqual(Ticket.objects.get(holder=self.holder_of(left[1])).attempt, 1)
        self.open_gate()
        for key in KEYS:
            self.wait_for_status(key, "finished")
        self.assertEqual(Attempt.objects.count(), 1)

    def holder_of(self, pid):
        rows = Worker.objects.all()
        return next(s["holder"] for row in rows for s in row.states if s["pid"] == pid)

    def test_a_worker_that_runs_on_the_host_gives_it_back_as_well(self):
        other = self.worker("--queue", "other", **self.settings).ready()
        other.helper()
        self.killed_worker()
        wait_until(lambda: "Tasks of a dead worker are given back." in other.errors)
        wait_until(lambda: not Ticket.objects.filter(state=State.RUNNING).exists())

    def test_so_it_is_where_the_supervisor_died_before_its_processors(self):
        worker = self.busy_worker()
        [row] = Worker.objects.all()
        processors = {state["pid"] for state in row.states}
        kill_all([row.pid])
        wait_until(lambda: set(worker.alive()) <= processors)
        kill_all(worker.alive())
        wait_until(lambda: not worker.alive())
        self.worker(**self.settings)
        self.wait_for_note("start", 4)

    def test_those_of_other_hosts_and_containers_are_not_judged_by_their_pids(self):
        self.killed_worker()
        for change in ({"host": "another"}, {"pid_space": "another/1"}, {"pid_space": ""}):
            Worker.objects.update(**change)
            worker = self.worker("--burst", **self.settings)
            self.assertEqual(worker.wait(), 0, worker.errors)
        self.assertEqual(len(self.notes("start")), 2)

        with self.subTest("but by the word of a person"):
            name = Worker.objects.get().host
            Worker.objects.update(seen_at=ServerNow())
            self.assertIn("was seen", refused(self, "pq_status", "give-back", name))
            out = run("pq_status", "give-back", name, "--force")
            self.assertEqual(out, "Tasks that are given back: 2.\n")
            self.assertIn("No worker is called", refused(self, "pq_status", "give-back", name))
            self.open_gate()
            self.burst(**self.settings)
            self.assertEqual({self.status(key) for key in KEYS}, {"finished"})

    def test_a_worker_that_lives_is_refused_what_it_writes_after_that(self):
        worker = self.busy_worker()
        run("pq_status", "give-back", str(Worker.objects.get()), "--force")
        self.wait_for_note("start", 4)
        self.open_gate()
        for key in KEYS:
            self.wait_for_status(key, "finished")
        self.assertEqual(self.notes("PreemptedError") and worker.process.poll(), None)
        self.assertEqual(Queue()["k0"].metadata().attempt, 2)

    @tag("thorough")
    @override_settings(PERFECTQUEUE={})
    @unittest.skipIf(connection.vendor == "sqlite", "A SQLite file serves one host.")
    def test_on_another_host_they_run_again_within_a_minute_by_default(self):
        self.settings["ALIVE_TIME"] = conf.options().ALIVE_TIME
        self.killed_worker(environment=pretended("one", 0))
        began = time.monotonic()
        self.worker(**self.settings, environment=pretended("two", 0))
        self.wait_for_note("start", 4, within=80)
        seconds = time.monotonic() - began
        self.assertLess(seconds, 60.0)
        self.assertGreater(seconds, self.settings["ALIVE_TIME"] / 3)


class ProcessTests(SimpleTestCase):
    @unittest.skipUnless(processes.pid_space(), "Only Linux says when a process started.")
    def test_a_pid_that_another_process_has_now_is_no_sign_of_life(self):
        own, start = os.getpid(), processes.start_of(os.getpid())
        self.assertGreater(start, 0)
        self.assertFalse(processes.has_ended(own, start))
        self.assertTrue(processes.has_ended(own, start - 1))
        self.assertFalse(processes.has_ended(own, 0))
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        self.assertTrue(processes.has_ended(child, start))
        os.waitpid(child, 0)
        self.assertTrue(processes.has_ended(child, 0))
