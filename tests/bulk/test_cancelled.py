"""A running bulk operation ends within a second of its cancel request, and leaves out nothing."""

import os
import signal
import time

from django.db import transaction
from django.db.models import F
from django.test import tag

from django_perfectqueue.bulk import Operation, Selection, submit_bulk
from django_perfectqueue.bulk.handler import CHUNK
from django_perfectqueue.models import Ticket
from django_perfectqueue.queue import Queue

from ..waiting import LONG, wait_until
from ..worker.workers import WorkerTestCase

ROWS = 6_000
ROUNDS = int(os.environ.get("PERFECTQUEUE_TEST_ROUNDS", "2"))


def submit_rows(count):
    Queue("rows").submit_many({"key": str(n), "type": "report", "data": {}} for n in range(count))


def edit_all(number):
    selection = Selection(queue="rows")
    operation = Operation(verb="edit", selection=selection, patch={"n": number}, rate=1e6)
    return submit_bulk(operation, queue="default", using="default")


def count_of(task):
    return task.metadata().data["done"].get("edited", 0)


def attempt_of(task):
    return Ticket.objects.filter(task_id=task.id).values_list("attempt", flat=True).first()


@tag("thorough")
class CancelledTests(WorkerTestCase):
    def test_it_ends_within_a_second_after_one_more_chunk_at_most(self):
        submit_rows(ROWS)
        self.worker(PROCESSORS=1).ready()
        took, more = [], []
        for number in range(1, ROUNDS + 1):
            task = edit_all(number)
            least = CHUNK * (number % 7)
            wait_until(lambda task=task, least=least: count_of(task) >= least)
            task.cancel_request()
            began, before = time.monotonic(), count_of(task)
            wait_until(lambda task=task: task.metadata().status == "cancelled")
            took.append(time.monotonic() - began)
            more.append(count_of(task) - before)
            done = task.metadata().data["done"]
            self.assertEqual(done, {"edited": count_of(task)} if done else {})
            rows = Queue("rows").list().order_by("pk")
            edited = [row.data.get("n") == number for row in rows]
            self.assertEqual(edited, [True] * sum(edited) + [False] * (ROWS - sum(edited)))
            self.assertEqual(sum(edited), count_of(task))
        self.assertLessEqual(max(took), 1.0, took)
        self.assertLessEqual(max(more), CHUNK, more)

    def test_a_worker_that_is_frozen_past_its_lease_leaves_out_no_row(self):
        submit_rows(ROWS // 2)
        terms = {"PROCESSORS": 1, "ALIVE_TIME": 4.0, "RETRY_WAIT": 0.05, "MAX_CRASHES": 50}
        frozen = self.worker(**terms).ready()
        task = edit_all(1)
        wait_until(lambda: count_of(task) >= CHUNK)
        held, attempt = frozen.alive(), attempt_of(task)
        with transaction.atomic():
            # On SQLite it is frozen while it has no lock of the database.
            Ticket.objects.filter(task_id=task.id).update(rank=F("rank"))
            for pid in held:
                os.kill(pid, signal.SIGSTOP)
        self.worker(**terms)
        wait_until(lambda: attempt_of(task) != attempt)
        for pid in held:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: task.metadata().status == "finished", within=5 * LONG)

        self.assertEqual(task.metadata().result, {"edited": ROWS // 2})
