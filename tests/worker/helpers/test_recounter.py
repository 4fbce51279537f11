"""A worker keeps the counters of what runs right."""

from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Account, Worker
from django_perfectqueue.queue import Queue

from ...management.running import refused
from ...waiting import wait_until
from ..workers import WorkerTestCase


class WorkerTests(WorkerTestCase):
    def test_it_corrects_one_that_holds_tasks_back_and_tells(self):
        set_share("ann", max_running=1)
        Queue().submit("before", "report", user="ann")
        Queue().poll().finish()
        Account.objects.update(running=1)
        Queue().submit("behind", "report", user="ann")
        self.assertIsNone(Queue().poll())

        worker = self.worker().ready()
        self.wait_for_status("behind", "finished")
        wait_until(lambda: "A counter differed from the running tasks" in worker.errors)
        self.assertIn("queue='default' user='ann' counted=1 running=0", worker.errors)
        wait_until(lambda: Worker.objects.filter(drifted_at__isnull=False).exists())
        self.assertIn("were corrected", refused(self, "pq_status", "health"))
