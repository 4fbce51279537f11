from datetime import timedelta
from unittest import mock

from django.db import connection
from django.db.models import F
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.health.queues import overview
from django_perfectqueue.models import LIVE, Bucket, Limit, Task, Usage, Worker
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.records import counts

from ..factories import (
    MINUTE,
    acquire,
    fail,
    finish,
    processor,
    register,
    retry,
    running,
    submit,
    submit_many,
)
from ..inspection.test_statistics import ran


def queues():
    store.upkeep.wake_forgotten_lanes(using="default")
    return {one.name: one for one in overview(using="default").queues}


def take(queue, **options):
    submit(now=None, queue=queue)
    store.upkeep.wake_forgotten_lanes(using="default")
    [lease] = acquire(now=None, queues=(queue,), **options)
    return lease


def now():
    return store.records.clock(using="default")


def count_submitted():
    newest = store.records.count_submitted(0, using="default")
    store.records.count_submitted(newest, using="default")


def park(key):
    """Have a task wait for a worker that knows its type."""
    [lease] = acquire(now=None)
    store.settle([lease], store.Ending.release(60.0), using="default")
    store.park([lease], lambda _type: False, using="default")


class OverviewTests(TestCase):
    def test_without_tasks_the_queue_of_the_settings_needs_a_worker(self):
        [default] = queues().values()
        self.assertTrue(default.is_unserved)
        register("default", now=None)
        self.assertTrue(queues()["default"].is_well)

    def test_each_status_is_counted(self):
        for _number in range(3):
            lease = take("mail")
        register("mail", now=None, states=[processor(1, lease.task_id)])
        retry(take("mail"), now=None, wait=60)
        take("mail", lease=0)
        submit(now=None, queue="mail", run_at="1h")
        submit_many(2, queue="mail", now=None)
        submit(queue="other", now=None)
        Queue("mail").chain([{"type": "report", "run_at": "1d"}, {"type": "report"}])

        mail = queues()["mail"]
        self.assertEqual((mail.running, mail.stalled), (3, 1))
        self.assertEqual((mail.waiting, mail.scheduled, mail.retrying), (2, 2, 1))
        for word in LIVE:
            count = Queue("mail").list().in_status(word).count()
            self.assertEqual(getattr(mail, word), count, word)
        self.assertEqual((mail.workers, mail.processors, mail.parked), (1, 2, 0))
        self.assertFalse(mail.is_bounded)
        self.assertEqual((queues()["other"].waiting, queues()["other"].running), (1, 0))

    def test_a_count_that_was_cut_off_says_so(self):
        submit_many(5, now=None)
        submit_many(4, queue="later", now=None, run_at="1h")
        with mock.patch.object(counts, "COUNTED", 2):
            found = queues()
        self.assertEqual(found["default"].waiting, 3)
        self.assertTrue(found["later"].is_bounded)

    def test_a_chain_behind_a_task_that_failed_is_seen(self):
        register("default", now=None)
        Queue().chain([{"type": "report"}] * 6)
        [lease] = acquire(now=None)
        fail(lease, now=None)

        [default] = queues().values()
        self.assertEqual((default.blocked, default.waiting), (5, 0))
        self.assertIsNone(default.drained_in)
        with mock.patch.object(counts, "COUNTED", 2):
            self.assertTrue(queues()["default"].is_bounded)

    def test_without_a_worker_nobody_knows_when_a_queue_is_drained(self):
        submit(now=None)
        ran(2.0, at=now() - timedelta(minutes=2))
        self.assertIsNone(queues()["default"].drained_in)
        register("default", now=None)
        self.assertGreater(queues()["default"].drained_in, 0)

    def test_what_a_pause_or_a_limit_holds_back_waits_too(self):
        Limit.objects.create(scope="name", name="full", max_running=0)
        submit_many(2, user="ann", limits=["full"], now=None)
        submit_many(3, user="bob", now=None)
        acquire(now=None)
        set_share("bob", paused=True)

        default = queues()["default"]
        self.assertEqual(default.waiting + default.running, 5)
        self.assertGreaterEqual(default.waiting, 4)

    def test_a_queue_that_nobody_serves_is_not_well(self):
        register("mail", now=None)
        submit(queue="reports", now=None)
        submit(queue="mail", now=None)
        found = queues()
        self.assertTrue(found["reports"].is_unserved)
        self.assertTrue(found["mail"].is_well)
        register("reports", now=None, leaving=True)
        self.assertTrue(queues()["reports"].is_unserved)

    def test_a_queue_is_late_by_its_oldest_task(self):
        register("default", now=None)
        submit(now=now() - timedelta(seconds=100))
        self.assertTrue(queues()["default"].is_well)
        with override_settings(PERFECTQUEUE={"LATE_AFTER": 60}):
            self.assertTrue(queues()["default"].is_late)
        with override_settings(PERFECTQUEUE={"LATE_AFTER": None}):
            self.assertFalse(queues()["default"].is_late)

    def test_a_type_without_a_handler_is_named(self):
        register("default", now=None)
        submit("k1", type="misspelt", now=None)
        park("k1")
        default = queues()["default"]
        self.assertEqual((default.unknown_types, default.parked), (["misspelt"], 1))
        self.assertEqual(default.scheduled, Queue().list().in_status("scheduled").count())
        self.assertFalse(default.is_well)

    def test_a_pause_is_shown(self):
        submit(queue="mail", now=None)
        Queue("mail").pause()
        self.assertEqual({name: one.paused for name, one in queues().items()}["mail"], True)
        self.assertFalse(queues()["default"].paused)

    def test_rates_are_of_the_last_minutes(self):
        register("default", now=None)
        ran(*[1.0] * 10, at=now(), word="finished")
        ran(1.0, at=now(), word="failed")
        ran(1.0, at=now() - timedelta(minutes=30), word="failed")
        ran(1.0, at=now() - timedelta(hours=2), word="failed")
        submit_many(4, now=None)

        default = queues()["default"]
        self.assertEqual((default.failed_last_hour, default.finished_a_minute), (2, 2.0))
        self.assertEqual(default.drained_in, 120.0)
        minutes = overview(using="default").minutes
        self.assertEqual(len(minutes), 60)
        self.assertEqual(sum(tally.finished + tally.failed for _start, tally in minutes), 12)
        self.assertEqual(sum(tally.failed for _start, tally in minutes[-2:]), 1)

    def test_the_latest_failures_are_by_group(self):
        for number in range(3):
            _task, lease = running(f"k{number}", now=None)
            fail(lease, now=None)
        _task, lease = running("fine", now=None)
        finish(lease, now=None)
        [(count, at)] = overview(using="default").failed.values()
        self.assertEqual(count, 3)
        self.assertLess(now() - at, timedelta(minutes=1))

    def test_who_received_most_lately_comes_first(self):
        ran(1.0, at=now() - timedelta(minutes=2))
        ran(3.0, at=now() - timedelta(minutes=2), user="bob")
        submit(now=None)

        def received():
            return overview(using="default").received

        expected = [("default", "bob", 1, 3.0), ("default", "ann", 1, 1.0)]
        self.assertEqual(received(), expected, "nothing is summed up yet")
        store.records.roll_up(using="default", keep=None)
        self.assertEqual(received(), expected)

    def test_who_hogs_now_is_seen_however_much_was_before(self):
        ran(1.0, at=now() - timedelta(minutes=9))
        store.records.roll_up(using="default", keep=None)
        ran(3.0, at=now(), user="bob")
        found = overview(using="default").received
        self.assertEqual([one[:2] for one in found], [("default", "bob")])

    def test_whether_the_backlog_grows_is_known(self):
        ago = now() - timedelta(minutes=5)
        submit_many(40, now=ago)
        ran(*[1.0] * 10, at=ago)
        self.assertIsNone(queues()["default"].growth_a_minute)
        register()
        count_submitted()
        default = queues()["default"]
        self.assertEqual((default.submitted_a_minute, default.growth_a_minute), (8.0, 6.0))

    def test_the_growth_is_that_of_each_queue_at_any_time_after_a_burst(self):
        """By two queues, of which the one got all its tasks before the other."""
        register("default", "mail", now=None)
        start = now()
        done = {"at": start, "word": "finished"}
        with mock.patch("django_perfectqueue.store.records.usage_read.COUNTED", 100):
            submit_many(500, now=start)
            submit_many(500, queue="mail", now=start)
            ran(*[0.0] * 500, **done)
            ran(*[0.0] * 250, queue="mail", **done)
            grown = {"default": set(), "mail": set()}
            for minute in range(12):
                if minute == 2:
                    count_submitted()
                # On a slow machine a worker that has not reported for so long is gone.
                Worker.objects.update(seen_at=now())
                for name, queue in queues().items():
                    grown[name].add(queue.growth_a_minute)
                Usage.objects.filter(span=Bucket.MINUTE).update(start=F("start") - MINUTE)
                Task.objects.update(created_at=F("created_at") - MINUTE)
        self.assertEqual(grown, {"default": {0.0}, "mail": {0.0, 50.0}})

    def test_those_that_are_not_well_come_first(self):
        register("alpha", "default", now=None)
        submit(queue="alpha", now=None)
        submit(queue="zulu", now=None)
        self.assertEqual(next(iter(queues())), "zulu")

    def test_it_takes_nine_statements_and_one_for_limits_however_many_queues_there_are(self):
        for number in range(20):
            submit(queue=f"queue-{number}", now=None)
        register("default", now=None, states=[processor(1, Task.objects.first().pk)])
        self.assertEqual(self.statements(), 9)
        Limit.objects.create(scope="name", name="full", max_running=0)
        for number in range(20):
            submit(limits=["full", f"name-{number}"], queue=f"queue-{number}", now=None)
        self.assertEqual(self.statements(), 10)

    def statements(self):
        store.upkeep.wake_forgotten_lanes(using="default")
        with CaptureQueriesContext(connection) as queries:
            overview(using="default")
        return len(queries)

    def test_a_task_behind_a_full_limit_is_not_the_oldest(self):
        Limit.objects.create(scope="name", name="full", max_running=0)
        submit("held", user="ann", limits=["full"], now=now() - timedelta(hours=1))
        submit("free", user="bob", now=now() - timedelta(minutes=1))
        self.assertLess(queues()["default"].oldest, 600)
