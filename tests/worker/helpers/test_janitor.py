from functools import partial
from unittest import mock

from django.test import SimpleTestCase, TestCase

from django_perfectqueue import store
from django_perfectqueue.conf import Options
from django_perfectqueue.models import Task
from django_perfectqueue.store.lanes.idle_marks import Rounds
from django_perfectqueue.store.upkeep.purge import BATCH
from django_perfectqueue.worker.helpers.janitor import LANES, MOST_ROUSED, Janitor, Purge
from django_perfectqueue.worker.plan import Plan

from ...factories import acquire, after, failed, finish, submit
from ...tasks import SampleDispatch


def plan(**options):
    return Plan(
        dispatch=SampleDispatch,
        queues=("default",),
        using="default",
        options=Options().replace(**options),
    )


def whole_round(purge):
    purge.begin()
    while purge.batch():
        pass


class PurgeTests(TestCase):
    def test_what_has_finished_long_ago_goes_and_the_rest_stays(self):
        for key in ("a", "b"):
            submit(key)
        finish(*acquire(2), now=after(0))
        failed("c")
        submit("d")
        purge = Purge(plan(RETENTION_TIME=0.0))
        with mock.patch.object(store, "purgeable", at_noon(store.purgeable)):
            whole_round(purge)
        self.assertEqual(set(Task.objects.values_list("key", flat=True)), {"c", "d"})

    def test_the_newest_of_each_queue_stay_where_a_count_is_kept(self):
        """A quiet queue that is never over its count must not hold up the others."""
        order = ("quiet", "busy", "busy", "quiet", "busy", "quiet", "busy")
        for number, queue in enumerate(order):
            submit(f"{queue}-{number}", queue=queue)
            finish(*acquire(1, queues=[queue]), now=after(0))
        purge = Purge(plan(RETENTION_COUNT=3, RETENTION_TIME=None))
        with mock.patch.object(store, "purgeable", partial(store.purgeable, limit=1)):
            whole_round(purge)
        left = ["busy-2", "busy-4", "busy-6", "quiet-0", "quiet-3", "quiet-5"]
        self.assertEqual(sorted(Task.objects.values_list("key", flat=True)), left)

    def test_they_are_counted_when_enough_has_been_submitted(self):
        submit("a")
        finish(*acquire(1), now=after(0))
        purge = Purge(plan(RETENTION_COUNT=50, RETENTION_TIME=None))
        with mock.patch.object(store, "surplus", wraps=store.surplus) as surplus:
            for _round in range(3):
                whole_round(purge)
            self.assertEqual(surplus.call_count, 1)
            submit("b")
            whole_round(purge)
            self.assertEqual(surplus.call_count, 2)


def at_noon(purge):
    return lambda *args, **kwargs: purge(*args, now=after(1), **kwargs)


class SweepTests(SimpleTestCase):
    """Lanes that sleep, or have another policy than the settings say, may be many."""

    def sweep(self, *found):
        janitor = mock.Mock(
            spec=Janitor,
            stopping=False,
            plan=plan(),
            wakeups=mock.Mock(),
            link=mock.Mock(),
            rounds=Rounds(0.0),
        )
        janitor.step = lambda name, work: work()
        janitor.wake_forgotten_lanes = lambda: Janitor.wake_forgotten_lanes(janitor)
        with (
            mock.patch.object(store, "follow"),
            mock.patch.object(
                store, "wake_forgotten_lanes", side_effect=found
            ) as wake_forgotten_lanes,
        ):
            Janitor.sweep(janitor)
        return wake_forgotten_lanes.call_count

    def test_it_goes_on_while_there_are_more(self):
        self.assertEqual(self.sweep(0), 1)
        self.assertEqual(self.sweep(LANES, LANES, 3), 3)

    def test_it_has_an_end_where_another_worker_has_other_settings(self):
        self.assertEqual(self.sweep(*[LANES] * (MOST_ROUSED + 1)), MOST_ROUSED)


class PurgeCursorTests(SimpleTestCase):
    """The two hands, over a table of imaginary batches of ten ids."""

    def setUp(self):
        self.asked = []
        self.young_from = 35
        self.last = 60
        self.over_from = 1000

    def purgeable(self, retention, *, using, after, over):
        self.asked.append(after)
        stopped = after + 10 > self.young_from
        reached = after + 10 if after + 10 < self.last else None
        doomed = range(BATCH if after >= self.over_from else 0)
        return store.Swept(dict.fromkeys(doomed, "finished"), reached, stopped)

    def imaginary(self):
        return mock.patch.multiple(
            store,
            purgeable=self.purgeable,
            purge=lambda found, using: found,
            forget_batches=lambda keep, using: 0,
        )

    def rounds(self, count):
        purge = Purge(plan())
        asked = []
        for _round in range(count):
            self.asked = []
            with self.imaginary():
                whole_round(purge)
            asked.append(self.asked)
        return asked

    def test_the_front_hand_stops_where_tasks_are_young_and_goes_on_from_there(self):
        """
        A round over a million tasks that are all too young must cost one batch.
        """
        first, second, third = self.rounds(3)
        self.assertEqual(first, [0, 10, 20, 30])
        self.assertEqual(second, [0, 30])
        self.assertEqual(third, [10, 30])

    def test_the_slow_hand_goes_round_behind_the_front_one(self):
        """
        A task that was running when the front hand passed is deleted by the slow one.
        """
        self.assertEqual([asked[0] for asked in self.rounds(6)], [0, 0, 10, 20, 0, 10])

    def test_the_front_hand_waits_at_the_end_of_the_table(self):
        self.young_from = 1000
        first, second = self.rounds(2)
        self.assertEqual(first, [0, 10, 20, 30, 40, 50])
        self.assertEqual(second, [0, 50])

    def test_the_slow_hand_goes_on_where_most_is_over(self):
        """
        The front hand has passed a backlog while it waited. At a batch a round it takes
        longer to be deleted than to be run.
        """
        self.young_from = 1000
        purge = Purge(plan())
        with self.imaginary():
            whole_round(purge)
            self.asked, self.over_from = [], 0
            whole_round(purge)
        self.assertEqual(self.asked, [0, 10, 20, 30, 40, 50])
