"""A user whose tasks take longer than expected leaves processors to others, and is charged."""

import os
import signal
import time

from django_perfectqueue.models import Account, State, Ticket
from django_perfectqueue.queue import Queue

from ...waiting import wait_until
from ..workers import WorkerTestCase

OTHERS = 300
SHARE = 2
"""A third of four processors, rounded up."""


class OverrunTests(WorkerTestCase):
    def waiting_others(self):
        lanes = Account.objects.exclude(user="long").values("pk")
        return Ticket.objects.filter(lane__in=lanes, state=State.WAITING).count()

    def assert_shared(self, *arguments, type="wait"):
        """While others wait it has its share of the processors, and alone it has all."""
        Queue().submit_many(
            {"key": f"o{n}", "type": "spend", "data": {"seconds": 0.02}, "user": f"u{n % 2}"}
            for n in range(OTHERS)
        )
        for number in range(8):
            self.submit(f"k{number}", type, user="long")
        worker = self.worker(*arguments)
        self.wait_for_note("start")
        begun = 1
        while self.waiting_others():
            # Two processors may look at the same moment, and both begin one.
            self.assertLessEqual(begun, SHARE + 1)
            begun = len(self.notes("start"))
        self.wait_for_note("start", 4)
        self.open_gate()
        wait_until(lambda: not Ticket.objects.exists())
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0, worker.errors)
        self.assertFalse(Account.objects.exclude(running=0).exists())

    def test_processes_are_shared(self):
        self.assert_shared("--processors", "4")

    def test_threads_are_shared(self):
        self.assert_shared("--processor-type", "thread", "--concurrency", "4")

    def test_places_of_an_event_loop_are_shared(self):
        options = ("--processor-type", "async", "--concurrency", "4")
        self.assert_shared(*options, type="wait-in-a-loop")

    def test_what_was_charged_when_its_processor_was_killed_is_corrected(self):
        self.submit("k0", user="long")
        self.worker()
        pid = self.wait_for_note("start")
        began = time.monotonic()
        wait_until(lambda: Ticket.objects.get().charged)
        os.kill(pid, signal.SIGKILL)
        self.wait_for_note("start", 2)
        killed = time.monotonic()
        wait_until(lambda: Ticket.objects.get().charged)
        self.open_gate()
        wait_until(lambda: not Ticket.objects.exists())

        lane = Account.objects.get(user="long")
        self.assertGreater(lane.virtual_time, time.monotonic() - killed - 1.0)
        self.assertLess(lane.virtual_time, time.monotonic() - began + 1.0)
