from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.models import Attempt, DeadLetter, Task

from ... import factories
from ...factories import acquire, after, failed, finish, running, submit, submit_many


def purge(retention, *, now, keep=None, **options):
    over = {} if keep is None else store.upkeep.surplus(keep, using="default").last
    return factories.purge(retention, now=now, over=over, **options)


def finished(count, *, now):
    submit_many(count, now=now)
    finish(*acquire(count, now=now), now=now)


class PurgeTests(TestCase):
    def test_a_finished_task_goes_when_its_time_has_passed(self):
        _task, held = running()
        finish(held)

        self.assertEqual(purge({"finished": 10.0}, now=after(9)).deleted, 0)
        self.assertEqual(purge({"finished": 10.0}, now=after(11)).deleted, 1)
        self.assertFalse(Task.objects.exists())

    def test_its_key_is_free_then(self):
        _task, held = running("k1")
        finish(held)
        purge({"finished": 0.0}, now=after(1))

        submit("k1")

    def test_failed_tasks_are_kept_until_someone_acts(self):
        failed()

        self.assertEqual(purge({"finished": 0.0, "failed": None}, now=after(9e6)).deleted, 0)

    def test_what_is_reported_of_a_task_goes_with_it(self):
        failed()

        self.assertEqual(purge({"failed": 1.0}, now=after(9)).deleted, 1)
        self.assertFalse(DeadLetter.objects.exists())
        self.assertFalse(Attempt.objects.exists())

    def test_a_live_task_is_never_purged(self):
        running()
        submit(run_at=9)

        swept = purge({"finished": 0.0, "failed": 0.0}, now=after(1e6), keep=0)
        self.assertEqual(swept.deleted, 0)

    def test_a_batch_is_bounded_and_tells_where_the_next_begins(self):
        finished(5, now=after(0))

        first = purge({"finished": 0.0}, now=after(9), limit=3)
        self.assertEqual((first.deleted, first.reached is not None), (3, True))
        rest = purge({"finished": 0.0}, now=after(9), limit=3, after=first.reached)
        self.assertEqual((rest.deleted, rest.reached), (2, None))

    def test_it_tells_that_the_rest_is_younger(self):
        finished(1, now=after(0))
        finished(1, now=after(100))

        swept = purge({"finished": 50.0}, now=after(60))
        self.assertEqual((swept.deleted, swept.stopped), (1, True))

    def test_no_more_than_the_newest_may_be_kept(self):
        finished(5, now=after(0))

        self.assertEqual(purge({"finished": None}, now=after(1), keep=2).deleted, 3)
        self.assertEqual(Task.objects.count(), 2)

    def test_the_count_takes_no_task_that_someone_has_yet_to_look_at(self):
        failed()
        finished(5, now=after(0))

        self.assertEqual(purge({"failed": None}, now=after(1), keep=2).deleted, 3)
        self.assertTrue(DeadLetter.objects.exists())
