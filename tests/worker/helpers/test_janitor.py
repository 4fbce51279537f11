from functools import partial
from unittest import mock

from django.db import DataError
from django.test import SimpleTestCase, TestCase

from django_perfectqueue import store
from django_perfectqueue.conf import Options
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Task
from django_perfectqueue.store.upkeep.deletion import BATCH
from django_perfectqueue.worker.helpers.janitor import (
    AT_ONCE,
    LANES,
    MOST_ROUSED,
    Janitor,
    Job,
    Purge,
    Scan,
)
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.shared.status import Wakeups

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
    purge.count()
    for step in (purge.behind, purge.at_front):
        while step() is not None:
            pass


class PurgeTests(TestCase):
    def test_what_has_finished_long_ago_goes_and_the_rest_stays(self):
        for key in ("a", "b"):
            submit(key)
        finish(*acquire(2), now=after(0))
        failed("c")
        submit("d")
        purge = Purge(plan(RETENTION={"*": 0.0}))
        with mock.patch.object(store.upkeep, "purgeable", at_noon(store.upkeep.purgeable)):
            whole_round(purge)
        self.assertEqual(set(Task.objects.values_list("key", flat=True)), {"c", "d"})

    def test_the_newest_of_each_queue_stay_where_a_count_is_kept(self):
        """A quiet queue that is never over its count must not hold up the others."""
        order = ("quiet", "busy", "busy", "quiet", "busy", "quiet", "busy")
        for number, queue in enumerate(order):
            submit(f"{queue}-{number}", queue=queue)
            finish(*acquire(1, queues=[queue]), now=after(0))
        purge = Purge(plan(RETENTION={"count": 3, "*": None}))
        with mock.patch.object(store.upkeep, "purgeable", partial(store.upkeep.purgeable, limit=1)):
            whole_round(purge)
        left = ["busy-2", "busy-4", "busy-6", "quiet-0", "quiet-3", "quiet-5"]
        self.assertEqual(sorted(Task.objects.values_list("key", flat=True)), left)

    def test_they_are_counted_when_enough_has_been_submitted(self):
        submit("a")
        finish(*acquire(1), now=after(0))
        purge = Purge(plan(RETENTION={"count": 50, "*": None}))
        with mock.patch.object(store.upkeep, "surplus", wraps=store.upkeep.surplus) as surplus:
            for _round in range(3):
                whole_round(purge)
            self.assertEqual(surplus.call_count, 1)
            submit("b")
            whole_round(purge)
            self.assertEqual(surplus.call_count, 2)


def at_noon(purge):
    return lambda *args, **kwargs: purge(*args, now=after(1), **kwargs)


class JobTests(TestCase):
    def setUp(self):
        self.now = 1000.0
        registration = mock.Mock()
        registration.worker.id = 1
        self.janitor = Janitor(plan(), Wakeups(), registration)
        self.addCleanup(self.janitor.wakeup.close)
        clock = mock.patch("time.monotonic", self.clock)
        clock.start()
        self.addCleanup(clock.stop)

    def clock(self):
        return self.now

    def taking(self, seconds, *answers):
        """Return a call that takes so long each time, and returns one answer after another."""
        given = iter(answers)

        def call():
            self.now += seconds
            return next(given)

        return call

    def test_it_is_done_again_after_its_interval(self):
        job = Job("x", 60.0, self.taking(0.5, None, 7.0))
        self.janitor.run_job(job)
        self.assertEqual(job.due_at, self.now + 60.0)
        self.janitor.run_job(job)
        self.now += 60.0
        self.janitor.run_job(job)
        self.assertEqual(job.due_at, self.now + 7.0)

    def test_it_goes_on_while_there_is_more_up_to_a_bound(self):
        calls = Job("x", 60.0, self.taking(1.0, AT_ONCE, AT_ONCE, None))
        self.janitor.run_job(calls)
        self.assertEqual(self.now, 1003.0)
        endless = Job("y", 60.0, self.taking(1.0, *[AT_ONCE] * 100))
        self.janitor.run_job(endless)
        self.assertLess(self.now, 1003.0 + plan().options.PURGE_INTERVAL)
        self.assertEqual(endless.due_at, self.now + 60.0)

    def test_one_that_takes_long_rests_so_many_times_as_long(self):
        job = Job("x", 60.0, self.taking(0.5, AT_ONCE), rest=1000.0)
        self.janitor.run_job(job)
        self.assertEqual(job.due_at, self.now + 500.0)

    def test_one_that_fails_for_what_is_stored_holds_up_no_other(self):
        self.janitor.link.retry_until_done = lambda verb: verb()
        with (
            mock.patch.object(store.records, "note_waiting", side_effect=DataError("out of range")),
            mock.patch.object(store.records, "roll_up") as roll_up,
            self.assertLogs("django_perfectqueue.database", "ERROR"),
        ):
            # The calls were bound before.
            for job in self.janitor.upkeep():
                if job.name.startswith("usage"):
                    self.janitor.run_job(job)
        roll_up.assert_called_once()

    def test_two_rounds_of_all_jobs_find_nothing_wrong_with_what_people_have_set(self):
        self.janitor.link.retry_until_done = lambda verb: verb()
        set_limit("smtp", rate=5)
        set_limit("report", scope="type", paused=True, until=after(3600))
        set_share("acme", weight=3)
        submit("a", user="acme", limits=["smtp"])
        submit("strange", type="unknown", now=None)
        leases = acquire(2, now=None)
        store.settle(leases, store.Ending.release(5.0), using="default")
        store.park(leases, lambda type_: type_ != "unknown", using="default")
        jobs = [job for job in self.janitor.upkeep() if job.name not in ("schedules", "file")]
        with self.assertNoLogs("django_perfectqueue", "ERROR"):
            for job in [*jobs, *jobs]:
                job.call()
        self.janitor.registration.note_drift.assert_not_called()

    def test_a_scan_goes_from_one_position_to_the_next_and_begins_anew(self):
        seen = []

        def batch(after):
            seen.append(after)
            return {0: 5, 5: 9}.get(after)

        scan = Scan(batch, 0)
        self.assertEqual([scan() for _batch in range(4)], [AT_ONCE, AT_ONCE, None, AT_ONCE])
        self.assertEqual(seen, [0, 5, 9, 0])

    def test_lanes_are_woken_up_to_a_bound_where_another_worker_has_other_settings(self):
        with mock.patch.object(store.upkeep, "wake_forgotten_lanes", return_value=LANES) as wake:
            self.janitor.wake_forgotten_lanes()
        self.assertEqual(wake.call_count, MOST_ROUSED)


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
        return store.upkeep.Swept(dict.fromkeys(doomed, "finished"), reached, stopped)

    def imaginary(self):
        return mock.patch.multiple(
            store.upkeep,
            purgeable=self.purgeable,
            purge=lambda found, using: found,
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
