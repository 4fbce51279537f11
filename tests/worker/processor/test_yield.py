"""Between two steps a long task gives its processor to the tasks of others, and goes on later."""

import signal
from collections import Counter

from django_perfectqueue.models import Account, Attempt, Ticket
from django_perfectqueue.queue import Queue

from ...waiting import wait_until
from ..workers import WorkerTestCase

STEPS = 8
PACE = {"steps": STEPS, "seconds": 0.1}
"""Eight steps, 0.8 s in all."""


class YieldTests(WorkerTestCase):
    def assert_yields(self, *arguments, type="march", pace=PACE, count=1):
        """A light task comes first that was submitted when long ones had all processors."""
        for number in range(count):
            self.submit(f"long-{number}", type, data=pace, user="long")
        worker = self.worker(*arguments, YIELD_AFTER=0.2)
        self.wait_for_note("step-0", count)
        self.submit("light", "note", user="light")
        wait_until(lambda: not Ticket.objects.exists())
        self.assertLess(self.place("light"), self.place("long-0"))
        steps = Counter(key for n in range(STEPS) for key, _pid in self.notes(f"step-{n}"))
        self.assertEqual(steps, {f"long-{number}": STEPS for number in range(count)})
        self.assertGreater(len(self.notes("start")), count)
        self.assertFalse(Attempt.objects.exists())
        self.assertFalse(Account.objects.exclude(running=0).exists())
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0, worker.errors)
        self.assertIn("yielded", worker.output)

    def place(self, key):
        return Queue()[key].metadata().ended_at

    def test_a_process(self):
        self.assert_yields()
