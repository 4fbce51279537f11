"""Tasks of types that no handler knows: they cost others nothing, and wait for who knows them."""

import signal

from django.db.models import Sum
from django.test import tag

from django_perfectqueue.models import PARKED_FROM, Ticket
from django_perfectqueue.queue import Queue

from ...waiting import wait_until
from ..workers import WorkerTestCase

MANY = 6_000
SAMPLES = "tests.tasks.SampleDispatch"


def parked():
    return Ticket.objects.filter(timer_at__gt=PARKED_FROM).count()


def acquires():
    tickets = Ticket.objects.filter(task__type="strange")
    return tickets.aggregate(Sum("attempt"))["attempt__sum"]


class UnknownTypeTests(WorkerTestCase):
    def submit_many(self, count, type_, **options):
        start = self.submitted = getattr(self, "submitted", 0)
        self.submitted += count
        numbers = range(start, self.submitted)
        data = {"diary": str(self.diary)}
        Queue().submit_many(
            {"key": f"k{number}", "type": type_, "data": data, **options} for number in numbers
        )

    def test_a_backlog_of_one_is_not_acquired_again_and_again(self):
        """
        What is acquired and released is charged nothing, so its user would always be next.
        """
        self.submit_many(MANY, "strange", user="ann")
        self.submit_many(50, "note", user="bob")
        self.worker(RETRY_WAIT=0.1)
        self.wait_for_note("ran", 50)
        wait_until(lambda: parked() == MANY)
        self.assertLess(acquires(), MANY / 4)
        before = acquires()
        self.submit_many(50, "note", user="ann")
        self.wait_for_note("ran", 100)
        self.assertEqual((parked(), acquires()), (MANY, before))

    def test_they_run_as_soon_as_a_worker_comes_that_knows_them(self):
        self.submit_many(5, "note")
        other = self.worker(SAMPLES)
        wait_until(lambda: parked() == 5)
        wait_until(lambda: Queue()["k0"].why_waiting().code == "unknown_type")
        self.assertEqual(Queue()["k0"].metadata().status, "scheduled")
        other.send(signal.SIGTERM)
        other.wait()

        self.worker()
        self.wait_for_note("ran", 5)

    def test_they_run_though_another_worker_does_not_know_them(self):
        self.worker(SAMPLES, RETRY_WAIT=0.1).ready()
        self.worker(RETRY_WAIT=0.1, PURGE_INTERVAL=0.2).ready()
        for _time in range(5):
            self.submit_many(10, "note")
        self.wait_for_note("ran", 50)

    def test_nor_does_a_backlog_wait_because_of_that_worker(self):
        """It would park what is in line again and again, some thousand at a time."""
        self.worker(SAMPLES, RETRY_WAIT=5, PROCESSORS=1).ready()
        self.worker(RETRY_WAIT=5, PROCESSORS=1).ready()
        self.submit_many(4_000, "note", user="ann")
        self.wait_for_note("ran", 4_000)

    def test_a_burst_runs_what_another_has_parked(self):
        self.submit_many(5, "note")
        self.burst(SAMPLES)
        self.assertEqual(parked(), 5)
        self.burst()
        self.assertEqual(len(self.notes("ran")), 5)

    @tag("thorough")
    def test_all_are_looked_at_again_after_a_long_while(self):
        """They may have expired, or a program that is no worker may wait for them."""
        self.submit_many(5, "strange")
        self.worker(RETRY_WAIT_LIMIT=1, PURGE_INTERVAL=0.2)
        wait_until(lambda: parked() == 5)
        wait_until(lambda: (acquires() or 0) >= 10)
