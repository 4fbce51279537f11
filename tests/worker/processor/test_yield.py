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

    def test_processes(self):
        self.assert_yields("--processors", "2", count=2)

    def test_threads(self):
        self.assert_yields("--processor-type", "thread", "--concurrency", "2", count=2)

    def test_coroutines(self):
        options = ("--processor-type", "async", "--concurrency", "2")
        self.assert_yields(*options, type="march-in-a-loop", count=2)

    def test_by_hand(self):
        self.assert_yields(type="march-by-hand")

    def steps_of_two_queues(self, order):
        """Run a long task of the first queue beside a light one of the second."""
        self.submit("long", "march", data=PACE, user="long")
        self.worker("--queue", "default", "--queue", "other", YIELD_AFTER=0.2, QUEUE_ORDER=order)
        self.wait_for_note("step-0")
        Queue("other").submit("light", "note", {"diary": str(self.diary)}, user="light")
        wait_until(lambda: not Ticket.objects.exists())
        return len(self.notes("start"))

    def test_a_queue_that_waits_has_its_turn(self):
        self.assertGreater(self.steps_of_two_queues("fair"), 1)

    def test_a_queue_that_comes_later_waits(self):
        self.assertEqual(self.steps_of_two_queues("ordered"), 1)

    def test_a_processor_that_is_free_is_used_first(self):
        self.submit("long", "march", data=PACE, user="long")
        self.worker("--processors", "2", YIELD_AFTER=0.1)
        self.wait_for_note("step-0")
        for number in range(5):
            self.submit(f"light-{number}", "note", user="light")
            self.wait_for_status(f"light-{number}", "finished")
        wait_until(lambda: not Ticket.objects.exists())
        self.assertEqual(len(self.notes("start")), 1)

    def test_a_user_does_not_yield_to_itself_nor_where_that_is_switched_off(self):
        for settings in ({"YIELD_AFTER": 0.0}, {"YIELD_AFTER": None, "user": "light"}):
            with self.subTest(settings):
                user = settings.pop("user", "long")
                self.submit("long", "march", data=PACE, user="long")
                worker = self.worker(**settings)
                before = len(self.notes("start"))
                self.wait_for_note("step-0", before + 1)
                self.submit("other", "note", user=user)
                wait_until(lambda: not Ticket.objects.exists())
                self.assertEqual(len(self.notes("start")), before + 1)
                worker.end()
                Queue().clear()
