import io
from datetime import timedelta
from unittest import mock

from django.db import OperationalError
from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.management.commands import pq_status
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.records import counts

from ..factories import register, submit, submit_many
from ..health.test_queues import now
from ..inspection.test_statistics import ran
from .running import Terminal, entered, refused, run, run_json


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

    def watched(self, out, *looks, arguments=("--watch",)):
        """Run it until Ctrl-C after so many looks; return what was written."""
        naps = [*[None] * (len(looks) - 1), KeyboardInterrupt]
        with (
            mock.patch.object(pq_status.time, "sleep", side_effect=naps) as slept,
            mock.patch.object(pq_status, "overview", side_effect=looks),
        ):
            entered("pq_status", *arguments, stdout=out, stderr=io.StringIO())
        self.assertEqual(slept.call_count, len(looks))
        self.slept = slept
        return out.getvalue()

    def test_a_terminal_is_redrawn_and_left_as_it_was(self):
        found = pq_status.overview(using="default")
        out = self.watched(Terminal(), found, found, arguments=["--watch", "5"])
        self.assertTrue(out.startswith(pq_status.OPEN))
        self.assertTrue(out.endswith(pq_status.CLOSE))
        self.assertEqual(out.count(pq_status.HOME), 2)
        self.slept.assert_called_with(5)

    def test_where_there_is_none_it_prints_one_after_the_other(self):
        found = pq_status.overview(using="default")
        out = self.watched(io.StringIO(), found, found)
        self.assertEqual(out.count("need attention"), 2)
        self.assertNotIn("\x1b", out)

    def test_it_goes_on_when_the_database_was_away(self):
        found = pq_status.overview(using="default")
        out = self.watched(io.StringIO(), OperationalError("gone"), found)
        self.assertIn("gone", out)
        self.assertIn("need attention", out)

    def test_more_than_fits_is_not_drawn(self):
        found = pq_status.overview(using="default")
        size = mock.Mock(lines=3, columns=80)
        with mock.patch.object(pq_status.shutil, "get_terminal_size", return_value=size):
            out = self.watched(Terminal(), found)
        self.assertEqual(out.count("\n"), 2)

    def test_a_wrong_interval_is_refused(self):
        for value in ("0", "-1", "soon"):
            with self.subTest(value):
                self.assertIn("--watch", refused(self, "pq_status", "--watch", value))
