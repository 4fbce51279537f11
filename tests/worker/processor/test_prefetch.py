from django.test import SimpleTestCase

from django_perfectqueue import store
from django_perfectqueue.worker.processor.pacing import Prefetch


def limits(prefetch, seconds, rounds):
    taken = []
    for _round in range(rounds):
        limit = prefetch.limit()
        taken.append(limit)
        for _task in range(limit):
            prefetch.ran("report", seconds)
    return taken


def lease(payload):
    return store.Lease(*[None] * 13, payload, *[None] * 3)


class PrefetchTests(SimpleTestCase):
    def test_it_begins_with_one_and_grows(self):
        """
        A processor that knows nothing of its tasks must not keep many from the others.
        """
        self.assertEqual(limits(Prefetch(), 0.0001, 7), [1, 4, 16, 64, 256, 1000, 1000])

    def test_long_tasks_are_taken_one_by_one(self):
        self.assertEqual(limits(Prefetch(), 2.0, 4), [1, 1, 1, 1])

    def test_it_takes_what_runs_in_a_quarter_of_a_second(self):
        self.assertEqual(limits(Prefetch(), 0.01, 5)[-1], 25)

    def test_it_slows_down_when_tasks_become_longer(self):
        prefetch = Prefetch()
        limits(prefetch, 0.001, 6)
        limits(prefetch, 1.0, 1)
        self.assertEqual(prefetch.limit(), 1)

    def test_what_keeps_the_processor_beside_its_handlers_makes_a_batch_smaller(self):
        prefetch = Prefetch()
        limits(prefetch, 0.0001, 6)
        prefetch.tasks = 10
        prefetch.paced(0.1)
        self.assertEqual(prefetch.limit(), 25)

    def test_a_setting_overrides_the_measure(self):
        self.assertEqual(limits(Prefetch(fixed=3), 2.0, 2), [4, 4])
        self.assertEqual(limits(Prefetch(fixed=0), 0.0001, 2), [1, 1])

    def test_places_are_filled_before_anything_is_known_of_the_tasks(self):
        """
        What runs at once waits behind nothing; but what would wait is not taken yet.
        """
        prefetch = Prefetch(places=10)
        self.assertEqual([prefetch.limit() for _time in range(4)], [1, 4, 10, 10])
        prefetch.ran("report", 0.1)
        self.assertEqual([prefetch.limit(), prefetch.limit()], [25, 25])
        for _task in range(100):
            prefetch.ran("report", 60.0)
        self.assertEqual(prefetch.limit(), 10)

    def test_large_data_makes_a_batch_smaller(self):
        """A batch of the largest data would fill the memory of the processor."""
        prefetch = Prefetch()
        limits(prefetch, 0.0001, 6)
        prefetch.took([lease("x" * 100_000), lease("x" * 300_000)])
        self.assertEqual(prefetch.limit(), 20)
        prefetch.took([lease("x" * 50_000_000)])
        self.assertEqual(prefetch.limit(), 1)

    def test_a_type_is_long_until_it_was_seen_to_be_short(self):
        """
        Finished tasks are written before one that may take long, and not after it.
        """
        prefetch = Prefetch()
        self.assertTrue(prefetch.may_be_long("report"))
        prefetch.ran("report", 0.001)
        self.assertFalse(prefetch.may_be_long("report"))
        prefetch.ran("import", 5.0)
        self.assertTrue(prefetch.may_be_long("import"))

    def test_a_batch_that_takes_far_longer_than_planned_is_over(self):
        """Tasks that are suddenly long must not keep what waits behind them from the others."""
        self.assertTrue(10.3 < Prefetch().over_at(10.0) < 10.4)
        self.assertEqual(Prefetch(fixed=3).over_at(10.0), float("inf"))
