"""Between two steps a long task gives its processor to the tasks of others, and goes on later."""

import signal
from collections import Counter
from functools import partial

from django_perfectqueue.fairness import set_limit, set_share
from django_perfectqueue.models import Account, Attempt, Ticket
from django_perfectqueue.queue import Queue

from ...waiting import wait_until
from ..workers import WorkerTestCase

AFTER = 0.1


class YieldTests(WorkerTestCase):
    """Long tasks take one step after the other until the gate is open."""

    def assert_yields(self, *arguments, type="march", count=1, cost=0.1):
        """A light task is run while long ones had all processors, and these lose nothing."""
        keys = [f"long-{number}" for number in range(count)]
        for key in keys:
            self.submit(key, type, user="long")
        Account.objects.update(cost=cost)
        worker = self.worker(*arguments, YIELD_AFTER=AFTER)
        self.wait_for_note("step-0", count)
        self.submit("light", "note", user="light")
        self.wait_for_status("light", "finished")
        self.wait_for_note("start", count + 1)
        self.open_gate()
        wait_until(lambda: not Ticket.objects.exists())
        lines = [line.split() for line in self.diary.read_text().splitlines()]
        steps = Counter((word, key) for word, key, _pid in lines if word.startswith("step-"))
        self.assertEqual(set(steps.values()), {1})
        self.assertEqual(sorted(key for key, _pid in self.notes("end")), keys)
        self.assertFalse(Attempt.objects.exists())
        self.assertFalse(Account.objects.exclude(running=0).exists())
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0, worker.errors)
        self.assertIn("yielded", worker.output)

    def test_a_process(self):
        self.assert_yields()

    def test_processes_of_a_user_whose_tasks_have_taken_a_minute_so_far(self):
        """Most of what is charged in advance is given back, and still the other one is first."""
        self.assert_yields("--processors", "2", count=2, cost=60.0)
        self.assertFalse(self.notes("step-200"))

    def test_threads(self):
        self.assert_yields("--processor-type", "thread", "--concurrency", "2", count=2)

    def test_coroutines(self):
        options = ("--processor-type", "async", "--concurrency", "2")
        self.assert_yields(*options, type="march-in-a-loop", count=2)

    def test_by_hand(self):
        self.assert_yields(type="march-by-hand")

    def test_a_queue_that_waits_has_its_turn(self):
        self.submit("long", "march", user="long")
        self.worker("--queue", "default", "--queue", "other", YIELD_AFTER=AFTER)
        self.wait_for_note("step-0")
        Queue("other").submit("light", "note", {"diary": str(self.diary)}, user="light")
        self.wait_for_note("ran")
        self.open_gate()
        wait_until(lambda: not Ticket.objects.exists())

    def assert_goes_on(
        self, other, *arguments, queue="default", meanwhile=lambda: None, **settings
    ):
        """A long task is not left though another waits."""
        self.submit("long", "march", user="long")
        self.worker(*arguments, **{"YIELD_AFTER": AFTER, **settings})
        self.wait_for_note("step-0")
        meanwhile()
        Queue(queue).submit("other", "note", {"diary": str(self.diary)}, user=other)
        self.wait_for_note("step-12")
        self.open_gate()
        self.wait_for_status("long", "finished")
        self.assertEqual(len(self.notes("start")), 1)

    def test_a_queue_that_comes_later_waits(self):
        queues = ("--queue", "default", "--queue", "other")
        self.assert_goes_on("light", *queues, queue="other", QUEUE_ORDER="ordered")

    def test_a_running_task_goes_on_while_its_queue_is_paused(self):
        self.assert_goes_on("light", meanwhile=Queue().pause)

    def test_a_running_task_goes_on_while_its_type_is_paused(self):
        pause = partial(set_limit, "march", scope="type", paused=True)
        self.assert_goes_on("light", meanwhile=pause)

    def test_a_running_task_goes_on_while_its_user_is_paused(self):
        self.assert_goes_on("light", meanwhile=partial(set_share, "long", paused=True))

    def test_a_user_does_not_yield_to_itself(self):
        self.assert_goes_on("long")

    def test_nothing_yields_where_that_is_switched_off(self):
        self.assert_goes_on("light", YIELD_AFTER=None)

    def test_a_processor_that_is_free_is_used_first(self):
        self.assert_goes_on("light", "--processors", "2")
