from datetime import timedelta

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.models import LIVE, Ticket
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

        [found] = run_json("pq_queue", "list")

        for status in LIVE:
            with self.subTest(status):
                self.assertEqual(found[status], Queue().list().in_status(status).count())

    def test_a_person_sees_each_queue(self):
        broken("broken")
        submit_many(3, now=None, user="acme")
        submit("k", queue="reports", now=None)
        store.upkeep.wake_forgotten_lanes(using="default")

        out = run("pq_queue", "list")

        self.assertRegex(out, r"default +3 ")
        self.assertRegex(out, r"reports +1 ")
