"""Tasks that run and join others, in workers as in production, which die and freeze."""

import os
import random
import signal
import time
from contextlib import suppress
from itertools import chain
from unittest import skipIf

from django.db import connection
from django.test import tag

from django_perfectqueue.models import Attempt, DependencyEvent, Task
from django_perfectqueue.queue import Queue

from ...waiting import wait_until
from ..workers import WorkerTestCase


class FamilyTests(WorkerTestCase):
    def run_families(self, *types, **data):
        for number, type_ in enumerate(types):
            self.submit(f"p{number}", type_, data=data, user="ann")
        self.parents = [f"p{number}" for number in range(len(types))]

    def assert_all_have_run_once(self):
        """Each family has three children, which have run once, and it knows them."""
        for key in self.parents:
            self.wait_for_status(key, "finished")
        known = [Queue()[key].metadata().result for key in self.parents]
        results = sorted(chain.from_iterable(known))
        children = Task.objects.exclude(key__in=self.parents)
        self.assertEqual(results, sorted(children.values_list("key", flat=True)))
        self.assertEqual({len(keys) for keys in known}, {3})
        self.assertEqual(set(children.values_list("user", flat=True)), {"ann"})
        ran = [key for word in ("ran", "end") for key, _pid in self.notes(word)]
        self.assertEqual(sorted(ran), results)

    def test_one_processor_runs_a_parent_and_its_children(self):
        """As the parent waits it holds no processor, and counts no attempt."""
        self.run_families("family", "family-in-a-loop")
        self.worker("--processors", "1")
        self.wait_for_note("start", 1)
        self.assertEqual(self.status("p0"), "blocked")
        self.open_gate()
        self.assert_all_have_run_once()
        self.assertFalse(Attempt.objects.exists())

    def test_two_workers_share_families(self):
        self.run_families(*["family", "family-in-a-loop"] * 6)
        self.open_gate()
        self.worker("--processors", "2")
        self.worker("--processor-type", "async", "--concurrency", "3")
        self.assert_all_have_run_once()

    def test_threads_do(self):
        self.run_families(*["family", "family-in-a-loop"] * 2)
        self.open_gate()
        self.worker("--processor-type", "thread", "--concurrency", "3")
        self.assert_all_have_run_once()

    def test_a_parent_whose_processor_is_killed_has_the_same_children(self):
        """Its children are committed, and its next step has yet to be reached."""
        stop = self.folder / "stop"
        self.run_families("family", stop=str(stop))
        # The other one may have a child that waits for the gate.
        self.worker("--processors", "2")
        pid = self.wait_for_note("between")
        self.assertEqual(Task.objects.count(), 3)
        os.kill(pid, signal.SIGKILL)
        self.wait_for_note("between", 2)
        stop.touch()
        self.open_gate()
        self.assert_all_have_run_once()

    @tag("thorough")
    def test_families_whose_processors_are_killed_again_and_again(self):
        """Each has its three children, whichever died when, and what they returned."""
        self.run_families(*["family", "family-in-a-loop"] * 10)
        self.open_gate()
        settings = {"MAX_CRASHES": 100, "RETRY_WAIT": 0.1, "RETRY_WAIT_LIMIT": 0.1}
        workers = [
            self.worker("--processors", "2", **settings),
            self.worker("--processor-type", "async", "--concurrency", "3", **settings),
        ]

        killed = []

        def all_done():
            live = Task.objects.filter(ticket__isnull=False).exists()
            for worker in workers if live else ():
                if pids := worker.processors():
                    with suppress(ProcessLookupError):
                        os.kill(pids[-1], signal.SIGKILL)
                        killed.append(pids[-1])
            until = time.monotonic() + random.uniform(0.2, 1.0)
            wait_until(lambda: time.monotonic() > until)
            return not live

        wait_until(all_done, within=240)
        self.assertTrue(killed)
        known = [Queue()[key].metadata().result for key in self.parents]
        self.assertEqual({len(keys) for keys in known}, {3})
        children = Task.objects.exclude(key__in=self.parents).values_list("key", flat=True)
        self.assertEqual(sorted(chain.from_iterable(known)), sorted(children))
        self.assertFalse(DependencyEvent.objects.exists())

    @skipIf(connection.vendor == "sqlite", "Who is frozen may hold the lock of the database.")
    def test_a_processor_that_was_frozen_past_the_lease_adds_nothing(self):
        stop = self.folder / "stop"
        self.run_families("family", stop=str(stop))
        frozen = self.worker("--processors", "1", ALIVE_TIME=1.0)
        pid = self.wait_for_note("between")
        os.kill(pid, signal.SIGSTOP)
        # One of them may have a child that waits for the gate.
        self.worker("--processors", "2", ALIVE_TIME=1.0)
        self.wait_for_note("between", 2)
        stop.touch()
        self.open_gate()
        self.assert_all_have_run_once()
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: "lost its lease" in frozen.errors)
        self.assert_all_have_run_once()
