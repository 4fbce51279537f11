"""Many processes at once: nothing is lost, and nothing is run twice."""

import multiprocessing
import random
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from django.db import connection
from django.test import TransactionTestCase, tag

from django_perfectqueue import store
from django_perfectqueue.models import Account, FairShare, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.values import new_holder

from ...factories import acquire, assert_books_balance, completion, finish_and_acquire

fork = multiprocessing.get_context("fork")

TASKS, SUBMITTERS, ACQUIRERS, USERS = 10_000, 8, 4, 20


def submit_some(number):
    queue = Queue()
    mine = range(number, TASKS, SUBMITTERS)
    single, bulk = mine[:150], mine[150:]
    for task in single:
        queue.submit(f"k{task}", "report", {"n": task}, user=f"u{task % USERS}")
    queue.submit_many(
        {"key": f"k{task}", "type": "report", "user": f"u{task % USERS}"} for task in bulk
    )


def finish_all(path, done):
    """Acquire, note what was acquired, and finish, until all is done."""
    with path.open("w") as log:
        drain(log, done)


def drain(log, done):
    holder, returned = new_holder(), []
    while True:
        held, _refused = finish_and_acquire(
            returned, random.choice([1, 10, 100]), holder=holder, now=None
        )
        log.write("".join(f"{lease.key}\n" for lease in held))
        returned = [completion(lease) for lease in held]
        if not held:
            if done.is_set() and not Ticket.objects.exists():
                return
            time.sleep(0.02)


def acquire_capped(cap, ready, stop, excess):
    """Run tasks under a cap that keeps changing; note whether it was ever exceeded."""
    holder = new_holder()
    ready.wait()
    while not stop.is_set():
        held = acquire(5, lease=60, holder=holder, now=None)
        if held and len(held) > cap:
            excess.value += 1
        store.finish([completion(lease) for lease in held], using="default")


class Processes:
    """Child processes that have no connection of their parent's."""

    def __init__(self):
        self.all = []

    def start(self, work, *args):
        process = fork.Process(target=alone, args=(work, *args))
        process.start()
        self.all.append(process)
        return process

    def __enter__(self):
        connection.close()
        return self

    def __exit__(self, *error):
        for process in self.all:
            if error[0]:
                process.kill()
            process.join()


def alone(work, *args):
    try:
        work(*args)
    finally:
        connection.close()


@tag("thorough")
class ExactlyOnceTests(TransactionTestCase):
    def test_eight_submit_and_four_acquire_ten_thousand_tasks(self):
        """Every task is finished exactly once, and every account is settled."""
        with TemporaryDirectory() as folder, Processes() as processes:
            done = fork.Event()
            logs = [Path(folder, str(number)) for number in range(ACQUIRERS)]
            acquirers = [processes.start(finish_all, log, done) for log in logs]
            submitters = [processes.start(submit_some, number) for number in range(SUBMITTERS)]
            for process in submitters:
                process.join()
            done.set()
            for process in acquirers:
                process.join()
            taken = Counter()
            for log in logs:
                taken.update(log.read_text().split())

        self.assertEqual([p.exitcode for p in processes.all], [0] * (SUBMITTERS + ACQUIRERS))
        self.assertEqual(len(taken), TASKS)
        self.assertEqual(set(taken.values()), {1})
        self.assertEqual(Task.objects.filter(outcome="finished").count(), TASKS)
        self.assertFalse(Ticket.objects.exists())
        assert_books_balance(self)


class CapTests(TransactionTestCase):
    def test_a_cap_is_never_exceeded_by_acquirers_together(self):
        """The observer reads committed states only, as everyone else does."""
        FairShare.objects.create(user="ann", max_running=3)
        Queue().submit_many({"key": f"k{n}", "type": "report", "user": "ann"} for n in range(600))
        with Processes() as processes:
            ready, stop, excess = fork.Event(), fork.Event(), fork.Value("i", 0)
            for _number in range(4):
                processes.start(acquire_capped, 3, ready, stop, excess)
            ready.set()
            seen = self.watch(until=time.monotonic() + 20)
            stop.set()

        self.assertEqual(excess.value, 0)
        self.assertLessEqual(max(seen), 3)
        self.assertEqual(Account.objects.get().running, 0)

    def watch(self, *, until):
        seen = [0]
        while time.monotonic() < until and Ticket.objects.exists():
            seen.append(Ticket.objects.filter(state=2).count())
        return seen
