from datetime import timedelta
from unittest import mock

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.management.commands import pq_queue as figures
from django_perfectqueue.models import Status, Ticket
from django_perfectqueue.queue import Queue
from tests.factories import (
    NOON,
    acquire,
    finish,
    retry,
    running,
    submit,
    submit_many,
)

from .running import broken, run, run_json

DAY = timedelta(days=1)


def every_status():
    """Have a task in each status, at the server's own time."""
    _task, lease = running("finished", now=None)
    finish(lease, now=None)
    broken("failed")
    _task, lease = running("retrying", now=None)
    retry(lease, now=None, wait=60)
    running("running", now=None)
    running("stalled", now=None, lease=0)
    submit("expired", now=None, expires_at=-1)
    acquire(now=None)
    submit("cancelled", now=None).cancel_request()
    submit("scheduled", now=None, run_at="1h")
    submit("blocked", now=None)
    Ticket.objects.filter(task__key="blocked").update(state=3)
    submit("due", now=None, run_at="1h")
    Ticket.objects.filter(task__key="due").update(timer_at=NOON - 9999 * DAY)
    submit("waiting", now=None)


class StatsTests(TestCase):
    def test_the_counts_are_those_of_the_queryset(self):
        """
        The narrow table is counted by itself, and must agree with what a status means.
        """
        every_status()
        store.upkeep.wake_forgotten_lanes(using="default")

        [found] = run_json("pq_queue", "show")

        for status in Status.values:
            with self.subTest(status):
                self.assertEqual(found["counts"][status], Queue().list().in_status(status).count())
        self.assertEqual(set(found["counts"]), set(Status.values))

    def test_a_person_sees_each_queue(self):
        broken("broken")
        submit_many(3, now=None, user="acme")
        submit("k", queue="reports", now=None)
        store.upkeep.wake_forgotten_lanes(using="default")

        out = run("pq_queue", "show")

        self.assertRegex(out, r"Queue 'default'\n  waiting +3  the first has been due for \S+\n")
        self.assertRegex(out, r"  failed +boom +1\n")
        self.assertIn("Queue 'reports'\n", out)
        self.assertNotIn("reports", run("pq_queue", "show", "default"))

    def test_what_has_ended_is_counted_up_to_a_bound(self):
        """
        Ten million finished rows make it no slower.
        """
        for number in range(3):
            broken(f"f{number}")
            _task, lease = running(f"d{number}", now=None)
            finish(lease, now=None)

        with mock.patch.object(figures, "COUNTED", 2):
            [found] = run_json("pq_queue", "show")
            out = run("pq_queue", "show")

        self.assertEqual(found["counts"]["finished"], 2)
        self.assertEqual(found["more"], ["finished", "failed", "cancelled", "expired"])
        self.assertRegex(out, r"finished +2\+\n")

    def test_nothing_at_all_is_said_in_words(self):
        self.assertIn("no queues yet", run("pq_queue", "show"))
        self.assertEqual(run_json("pq_queue", "show"), [])
        self.assertEqual(run_json("pq_queue", "show", "x")[0]["counts"]["waiting"], 0)

    def test_a_queue_that_is_not_there_gets_those_that_are(self):
        self.assertEqual(run("pq_queue", "show", "x"), "Queue 'x' has no tasks.\n")
        submit("k", queue="reports")

        self.assertEqual(
            run("pq_queue", "show", "x"), "Queue 'x' has no tasks. There is 'reports'.\n"
        )
        self.assertIn("Did you mean 'reports'?", run("pq_queue", "show", "report"))
