"""A bulk operation goes on after a crash, and does nothing twice."""

import os
import signal
from collections import Counter

from django.test import tag

from django_perfectqueue.bulk import Operation, Selection, submit_bulk
from django_perfectqueue.models import Change, Ticket
from django_perfectqueue.queue import Queue

from ..factories import acquire, fail
from ..waiting import wait_until
from ..worker.workers import WorkerTestCase

TASKS = 1_500


@tag("thorough")
class KilledTests(WorkerTestCase):
    def test_each_task_is_put_back_once_whenever_its_processors_are_killed(self):
        dead = Queue("dead")
        dead.submit_many({"key": str(n), "type": "report"} for n in range(TASKS))
        while leases := acquire(500, now=None, queues=["dead"]):
            for lease in leases:
                fail(lease, now=None)
        operation = Operation(verb="retry", selection=Selection(queue="dead"), rate=400.0)
        task = submit_bulk(operation, queue="default", using="default")

        def done():
            return task.metadata().data["done"].get("retried", 0)

        worker = self.worker(PROCESSORS=2, MAX_CRASHES=50, RETRY_WAIT=0.05).ready()
        for _kill in range(4):
            seen = done()
            wait_until(lambda seen=seen: done() > seen)
            for pid in worker.processors()[-2:]:
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: task.metadata().status == "finished", within=60)

        self.assertEqual(task.metadata().result, {"retried": TASKS})
        self.assertGreater(task.metadata().attempt, 1)
        signed = Change.objects.filter(after__did="retried").values_list("name", flat=True)
        self.assertEqual(Counter(signed), dict.fromkeys(map(str, range(TASKS)), 1))
        self.assertEqual(Ticket.objects.count(), TASKS)
