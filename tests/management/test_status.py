from datetime import timedelta
from unittest import mock

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.records import counts

from ..factories import register, submit, submit_many
from ..health.test_queues import now
from ..inspection.test_statistics import ran
from .running import run, run_json


class TopTests(TestCase):
    def setUp(self):
        submit_many(3, queue="mail", now=None)
        submit("old", queue="reports", now=now() - timedelta(seconds=400))
        register("mail", "default", host="web-1", generation=2, now=None)
        Queue("mail").pause()
        ran(1.0, 1.0, at=now() - timedelta(seconds=60), queue="mail")
        store.upkeep.wake_forgotten_lanes(using="default")

    def test_it_shows_queues_and_workers_once(self):
        out = run("pq_status")
        self.assertIn("Queues that need attention: reports.", out)
        self.assertRegex(out, r"\nqueue +waiting +oldest +running")
        self.assertRegex(out, r"\nreports +1 +6m\d+s .* no worker, late\n")
        self.assertRegex(out, r"\nmail +3 .* paused\n")
        self.assertRegex(out, r"\nweb-1 +7 +2 +1 .* +mail, default +2 +0 .* ago\n")
        self.assertNotIn("\x1b", out)

    def test_a_count_that_was_cut_off_has_a_plus(self):
        submit_many(4, queue="later", now=None, run_at="1h")
        with mock.patch.object(counts, "COUNTED", 2):
            out = run("pq_status")
        self.assertRegex(out, r"\nlater +0 +- +- +- +\d\+ +- ")
        self.assertRegex(out, r"\nqueue +waiting +oldest +running +retrying +scheduled +blocked")

    def test_programs_get_a_line_a_queue(self):
        found = {row["name"]: row for row in run_json("pq_status")}
        self.assertEqual(found["mail"]["waiting"], 3)
        self.assertFalse(found["reports"]["is_well"])
        self.assertEqual(found["mail"]["workers"], 1)
