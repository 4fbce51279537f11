"""A worker keeps the counters of what runs right."""

from unittest import mock

from django.test import SimpleTestCase

from django_perfectqueue import store
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Lane, Worker
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.helpers.periodic import LEAST_REST, RECOUNT_INTERVAL, Recounter

from ...management.running import refused
from ...waiting import wait_until
from ..workers import WorkerTestCase


class WorkerTests(WorkerTestCase):
    def test_it_corrects_one_that_holds_tasks_back_and_tells(self):
        set_share("ann", max_running=1)
        Queue().submit("before", "report", user="ann")
        Queue().poll().finish()
        Lane.objects.update(running=1)
        Queue().submit("behind", "report", user="ann")
        self.assertIsNone(Queue().poll())

        worker = self.worker().ready()
        self.wait_for_status("behind", "finished")
        self.assertIn("A counter differed from the running tasks", worker.errors)
        self.assertIn("queue='default' user='ann' counted=1 running=0", worker.errors)
        wait_until(lambda: Worker.objects.filter(drifted_at__isnull=False).exists())
        self.assertIn("were corrected", refused(self, "pq_health"))


class PaceTests(SimpleTestCase):
    def setUp(self):
        self.registration = mock.Mock(drifted_at=None, due_at=9.0)
        self.recounter = Recounter("default", self.registration)

    def rest_after(self, seconds, position=None):
        """Return for how long it rests when a look has taken so many seconds."""
        moments = [1000.0, 1000.0, 1000.0 + seconds]
        self.recounter.due_at = 0.0
        with (
            mock.patch.object(store, "recount", return_value=(position or store.Position(), [])),
            mock.patch.object(store, "repair", return_value=[]),
            mock.patch("time.monotonic", side_effect=moments),
        ):
            self.recounter.work()
        return self.recounter.due_at - moments[-1]

    def test_it_rests_so_many_times_as_long_as_it_takes(self):
        self.assertEqual(self.rest_after(0.001), RECOUNT_INTERVAL)
        self.assertAlmostEqual(self.rest_after(0.5), 0.5 * LEAST_REST)

    def test_it_goes_on_at_once_while_there_are_more(self):
        self.assertAlmostEqual(self.rest_after(0.001, store.Position(7, "")), 1.0)
