"""A task that waits holds no processor, whatever the type of that."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from threading import Thread

from django.db import Error, connection, transaction
from django.test import tag

from django_perfectqueue.exceptions import TaskError
from django_perfectqueue.models import Account, Attempt, DependencyEvent, Step, Ticket
from django_perfectqueue.payload import codecs
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


LEASE = 2.0


@tag("thorough")
class StormTests(WorkerTestCase):
    """Processors are killed, or frozen past their leases, while signals come and go."""

    SECONDS = 60.0

    def setUp(self):
        super().setUp()
        self.is_over = False
        self.keys = []
        self.sent = {}
        self.drawn = random.Random(1)

    def test_no_signal_is_lost_and_no_kept_step_runs_again(self):
        terms = {"ALIVE_TIME": LEASE, "MAX_CRASHES": 1_000, "CHILD_HEARTBEAT_LIMIT": 600.0}
        threads = ("--processor-type", "thread", "--concurrency", "3")
        workers = [self.worker("--processors", "2", **terms), self.worker(*threads, **terms)]
        senders = [Thread(target=self.send_many, args=[number]) for number in range(2)]
        for sender in senders:
            sender.start()
        until, frozen = time.monotonic() + self.SECONDS, {}
        while time.monotonic() < until:
            if Ticket.objects.count() < 60:
                self.keys += [f"k{len(self.keys) + number}" for number in range(20)]
                Queue().submit_many([{"key": key, "type": "go-far"} for key in self.keys[-20:]])
            self.harm(workers, frozen)
            time.sleep(0.1)
        self.is_over = True
        for sender in senders:
            sender.join()
        self.thaw(frozen, at=float("inf"))
        for key in self.keys:
            for name in "ab":
                with contextlib.suppress(TaskError):
                    if Queue()[key].signal(name, 2.0, on_conflict="ignore"):
                        self.assertNotIn((key, name), self.sent)
                        self.sent[key, name] = 2.0
        wait_until(lambda: not Ticket.objects.exists(), within=120)
        wait_until(lambda: not DependencyEvent.objects.exists())
        for task in Queue().list():
            self.assert_went_well(task)

    def harm(self, workers, frozen):
        self.thaw(frozen, at=time.monotonic())
        if self.drawn.random() > 0.12:
            return
        worker = self.drawn.choice(workers)
        alive = sorted(set(worker.processors()) & set(worker.alive()) - frozen.keys())
        for pid in alive[:1]:
            with contextlib.suppress(ProcessLookupError):
                if self.drawn.random() < 0.7:
                    os.kill(pid, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGSTOP)
                    frozen[pid] = time.monotonic() + 2 * LEASE

    def thaw(self, frozen, *, at):
        for pid in [pid for pid, until in frozen.items() if until <= at]:
            del frozen[pid]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def send_many(self, seed):
        """Send signals to tasks at random, some of them in a transaction that is rolled back."""
        drawn = random.Random(seed)
        while not self.is_over:
            time.sleep(0.005)
            for key in drawn.sample(self.keys[-60:], min(len(self.keys), 1)):
                name, value = drawn.choice("ab"), drawn.random()
                with contextlib.suppress(KeyError, TaskError, Error):
                    with transaction.atomic():
                        Queue()[key].signal(name, value)
                        if value < 0.3:
                            raise KeyError
                    self.sent[key, name] = value
        connection.close()

    def assert_went_well(self, task):
        kept = {
            (step.kind, step.name): codecs.decode(step.result_text)
            for step in Step.objects.filter(task_id=task.pk)
            if step.result_text
        }
        sent = [self.sent[task.key, "a"], None, self.sent[task.key, "b"], None, None]
        steps = [kept[Step.Kind.STEP, f"step {number}"] for number in range(5)]
        self.assertEqual(task.status, "finished")
        self.assertEqual(
            task.result, [one for pair in zip(steps, sent, strict=True) for one in pair]
        )
