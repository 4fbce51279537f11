"""Deleting what is old holds up nobody, and goes on in bounded steps."""

from unittest import mock

from django.db import transaction
from django.test import TransactionTestCase, skipUnlessDBFeature, tag

from django_perfectqueue import store
from django_perfectqueue.admin.parts.filters import plain
from django_perfectqueue.conf import Options
from django_perfectqueue.models import Attempt, DeadLetter, Task, Ticket
from django_perfectqueue.store.upkeep.deletion import BATCH
from django_perfectqueue.worker.helpers.janitor import Janitor, Purge
from django_perfectqueue.worker.shared.status import Wakeups

from .. import factories
from ..factories import acquire, after, elsewhere, failed, finish, keys, submit, submit_many
from ..worker.helpers.test_janitor import plan, whole_round
from .case import ScaleTestCase
from .filling import SCALE, mostly

EVERYTHING = plan(RETENTION={"*": 0.0, "failed": 0.0})


def purge(**options):
    return factories.purge({"finished": 0.0, "failed": 0.0}, now=after(9), **options)


def ids(count):
    return list(plain().order_by("pk").values_list("pk", flat=True)[:count])


@skipUnlessDBFeature("has_select_for_update_skip_locked")
class ConcurrencyTests(TransactionTestCase):
    """A batch that is not yet committed; on SQLite one writer waits for the other."""

    def test_a_batch_keeps_nobody_from_submitting_acquiring_and_finishing(self):
        submit_many(50, user="ann")
        finish(*acquire(20))
        failed("failed", user="ann")
        [held] = acquire(1)

        with transaction.atomic():
            self.assertEqual(purge().deleted, 21)
            elsewhere(lambda: submit("new", user="ann"))
            elsewhere(lambda: submit_many(10, user="bob"))
            self.assertEqual(len(elsewhere(lambda: acquire(10, now=after(1)))), 10)
            self.assertEqual(elsewhere(lambda: finish(held)), [])
            elsewhere(
                lambda: store.dependencies.cancel_request(
                    Ticket.objects.all()[0].pk, using="default"
                )
            )

    def test_a_batch_waits_for_nobody(self):
        """Rows that someone else holds are left for another round."""
        submit_many(400)
        finish(*acquire(400))

        with transaction.atomic():
            held = plain().select_for_update().filter(pk__in=ids(10))
            self.assertEqual(len(held), 10)
            swept = elsewhere(lambda: purge(limit=50))

        self.assertEqual(swept.deleted, 40)

    def test_two_batches_share_the_work(self):
        submit_many(400)
        finish(*acquire(400))

        with transaction.atomic():
            first = purge(limit=30)
            other = elsewhere(lambda: purge(limit=50))

        self.assertEqual((first.deleted, other.deleted), (30, 20))

    def test_what_is_scheduled_meanwhile_is_run(self):
        submit("later", run_at=5)
        submit("old")
        finish(*acquire(1))

        with transaction.atomic():
            purge()
            self.assertEqual(keys(elsewhere(lambda: acquire(2, now=after(6)))), ["later"])


@tag("thorough")
class BacklogTests(ScaleTestCase):
    """Nobody has deleted anything for long, and nothing runs."""

    def setUp(self):
        self.filling.clear()
        self.filling.grow(SCALE, mostly("finished"))
        self.batches = []

    def noting(self, purge):
        def noted(*args, **kwargs):
            swept = purge(*args, **kwargs)
            self.batches.append(swept.deleted)
            return swept

        return noted

    def test_it_goes_in_batches_of_which_each_is_bounded(self):
        live = Ticket.objects.count()
        with mock.patch.object(store.upkeep, "purge", self.noting(store.upkeep.purge)):
            whole_round(Purge(EVERYTHING))

        self.assertLessEqual(max(self.batches), BATCH)
        self.assertLessEqual(len(self.batches), SCALE // BATCH + 2)
        self.assertEqual((Task.objects.count(), Ticket.objects.count()), (live, live))
        self.assertFalse(DeadLetter.objects.exists())
        self.assertFalse(Attempt.objects.exclude(task_id__in=Ticket.objects.values("pk")).exists())

    @mock.patch.object(Options, "PURGE_INTERVAL", 0.1)
    def test_a_round_ends_in_time_and_the_next_goes_on(self):
        janitor = Janitor(EVERYTHING, Wakeups(), mock.Mock())
        [job] = [job for job in janitor.jobs if job.name == "purge"]
        with mock.patch.object(store.upkeep, "purge", self.noting(store.upkeep.purge)):
            janitor.run_job(job)
        some = len(self.batches)
        self.assertLess(some, SCALE // BATCH)
        front = janitor.purge.front

        while Task.objects.exclude(outcome="").exists():
            job.due_at = 0.0
            janitor.run_job(job)
        self.assertGreater(front, 0)
        self.assertLessEqual(front, some * BATCH)
