"""A task that waits holds no processor, whatever the type of that."""

import signal
from collections import Counter

from django_perfectqueue.models import Account, Attempt, Step, Ticket
from django_perfectqueue.queue import Queue

from ...waiting import wait_until
from ..workers import WorkerTestCase


class WaitTests(WorkerTestCase):
    def assert_waits(self, *arguments, type="approve"):
        """More tasks than processors wait for their signals, and each goes on after its own."""
        keys = [f"k{number}" for number in range(4)]
        for key in keys:
            self.submit(key, type)
        # One is there before the wait is reached.
        Queue()["k0"].signal("approved", 0)
        worker = self.worker(*arguments)
        self.wait_for_note("draft", 4)
        wait_until(lambda: Step.objects.filter(kind=Step.Kind.WAIT).count() == 3)
        self.wait_for_status("k0", "finished")
        self.assertEqual(set(Queue().list().live().values_list("status", flat=True)), {"blocked"})
        for number, key in enumerate(keys[1:], 1):
            Queue()[key].signal("approved", number)
        wait_until(lambda: not Ticket.objects.exists())
        lines = [line.split()[:2] for line in self.diary.read_text().splitlines()]
        said = Counter(map(tuple, lines))
        expected = [(word, key) for key in keys for word in ("draft", f"charge-{key[1]}", "end")]
        self.assertEqual(said, Counter(expected))
        self.assertFalse(Attempt.objects.exists())
        self.assertFalse(Account.objects.exclude(running=0).exists())
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0, worker.errors)
        self.assertIn("suspended", worker.output)

    def test_a_process(self):
        self.assert_waits()

    def test_threads(self):
        self.assert_waits("--processor-type", "thread", "--concurrency", "2")

    def test_coroutines(self):
        options = ("--processor-type", "async", "--concurrency", "2")
        self.assert_waits(*options, type="approve-in-a-loop")

    def test_workers_that_are_killed_where_tasks_wait_lose_nothing(self):
        self.submit("k0", "approve")
        worker = self.worker()
        self.wait_for_status("k0", "blocked")
        worker.end()
        Queue()["k0"].signal("approved", 0)
        worker = self.worker()
        wait_until(lambda: Step.objects.filter(kind=Step.Kind.SLEEP).exists())
        worker.end()
        self.worker()
        self.wait_for_status("k0", "finished")
        words = [line.split()[0] for line in self.diary.read_text().splitlines()]
        self.assertEqual(words, ["draft", "charge-0", "end"])
        self.assertFalse(Attempt.objects.exists())
