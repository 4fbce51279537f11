import json
from datetime import timedelta
from unittest import mock

from django.test import TestCase
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.bulk import forget_user
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import (
    Batch,
    Bucket,
    Change,
    FairShare,
    Journal,
    Limit,
    Schedule,
    Status,
    Task,
    Ticket,
    Usage,
)
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.store.limits.meters import forget_limits
from django_perfectqueue.store.records.dependency_events import Work
from django_perfectqueue.store.tasks.debounce import merge_debounced

from ..factories import NOON, assert_books_balance, failed, finish, running, submit


def usage_of(user):
    return Usage.objects.create(queue="default", span=Bucket.HOUR, start=NOON, user=user)


class ForgetTests(TestCase):
    def setUp(self):
        # What a test before this one has left, whose limits are rolled back.
        forget_limits("default")
        for user in ("acme", "other"):
            submit(f"{user}-1", user=user, tags=["vip"], now=None)
            _task, lease = running(f"{user}-2", user=user, queue="mail", now=None)
            finish(lease, result=json.dumps(user), now=None)
            failed(f"{user}-3", user=user)
            named = [("default", f"{user}-1")]
            store.records.sign(named, "edited", by="ann", using="default")
            set_share(user, weight=2, by="ann")
            set_limit(user, scope="user", max_running=3, by="ann")
            Schedules().put(f"{user}-s", "report", every=60, user=user, by="ann")
            Schedules()[f"{user}-s"].change(user="third", by="ann")
            Schedules()[f"{user}-s"].change(user=user, by="ann")
            with Queue().batch(f"{user}-b", user=user):
                pass
            usage_of(user)

    def stored(self, name):
        """Return the tables that have a name somewhere."""
        return {
            model._meta.db_table
            for model in Task._meta.apps.get_models()
            if model._meta.app_label == "perfectqueue"
            for row in model._base_manager.values()
            if name in json.dumps(row, default=str)
        }

    def test_a_schedule_that_fires_meanwhile_leaves_no_task(self):
        clear = store.upkeep.clear

        def cleared(*given, **named):
            found = clear(*given, **named)
            store.schedules.fire_schedules(using="default", now=timezone.now() + timedelta(hours=1))
            return found

        with mock.patch.object(store.upkeep, "clear", cleared):
            forget_user("acme", using="default")

        self.assertFalse(Task.objects.filter(user="acme").exists())
        self.assertTrue(Task.objects.filter(user="other", key__contains="@").exists())

    def test_nothing_is_left_of_one_user_and_all_of_others(self):
        before = {model: list(model._base_manager.values()) for model in (Task, Usage, Change)}
        found = forget_user("acme", using="default", dry_run=True)
        self.assertEqual(
            before, {model: list(model._base_manager.values()) for model in (Task, Usage, Change)}
        )

        done = forget_user("acme", using="default")

        self.assertEqual(done, found)
        counts = {"tasks": 3, "running": 0, "schedules": 1, "batches": 1, "shares": 1}
        self.assertEqual(done, {**done, **counts, "limits": 1, "usage": 1})
        # An account goes by itself once it is idle, and so do meters; a batch keeps its name.
        left = {"perfectqueue_account", "perfectqueue_batch"}
        self.assertLessEqual(self.stored("acme"), left)
        self.assertFalse(Batch.objects.filter(user="acme").exists())
        self.assertEqual(Task.objects.filter(user="other").count(), 3)
        for model in (FairShare, Limit, Schedule, Usage):
            self.assertEqual(model.objects.count(), 1, model)
        self.assertGreater(Change.objects.filter(name__contains="other").count(), 4)
        assert_books_balance(self)
        self.assertEqual(sum(forget_user("acme", using="default").values()), 0)

    def test_nor_is_what_counted_its_tasks_once_they_have_ended(self):
        queue = Queue("own")
        set_limit("shop-*", max_running=1)
        set_limit("zoe", scope="user", max_running=9)
        for who in ("zoe", "max"):
            queue.submit(f"{who[0]}-1", "t", user=who, unique="live", limits=[f"shop-{who[0]}"])
            queue.submit(f"{who[0]}-2", "t", user=who, sequence="s")
            queue.submit(f"{who[0]}-3", "t", user=who, debounce=1, leading=True)
            with queue.batch(f"{who[0]}-b", user=who) as batch:
                batch.submit(f"{who[0]}-4", "t", user=who)
        merge_debounced(Work(debounced=None), using="default")
        for task in iter(queue.poll, None):
            task.finish()
        self.assertIn("perfectqueue_lane", self.stored("zoe"))

        forget_user("zoe", using="default")

        self.assertEqual(self.stored("zoe"), set())
        self.assertIn("perfectqueue_account", self.stored("max"))
        assert_books_balance(self)
        queue.submit("back", "t", user="zoe")
        self.assertEqual(queue.poll().key, "back")

    def test_what_runs_is_asked_to_stop_and_goes_the_next_time(self):
        _task, lease = running("runs", user="acme", now=None)

        self.assertEqual(forget_user("acme", using="default")["running"], 1)
        self.assertEqual(Task.objects.get(user="acme").key, "runs")
        self.assertTrue(Ticket.objects.get(task_id=lease.task_id).cancel_requested)

        finish(lease, now=None)
        done = forget_user("acme", using="default")
        self.assertEqual((done["tasks"], done["running"]), (1, 0))
        self.assertFalse(Task.objects.filter(user="acme").exists())
        assert_books_balance(self)

    def test_one_that_a_dead_worker_left_behind_goes_at_once(self):
        running("lapsed", user="acme", now=NOON - timedelta(days=3_650))
        self.assertEqual(Queue()["lapsed"].metadata().status, Status.STALLED)

        self.assertEqual(forget_user("acme", using="default")["running"], 0)

        self.assertFalse(Task.objects.filter(user="acme").exists())
        self.assertFalse(Journal.objects.exists())

    def test_a_submit_that_has_yet_to_be_merged_becomes_no_task(self):
        for user in ("acme", "other"):
            submit(f"{user}-4", user=user, debounce=1, now=None)

        self.assertEqual(forget_user("acme", using="default", dry_run=True)["submits"], 1)
        self.assertEqual(forget_user("acme", using="default")["submits"], 1)
        merge_debounced(Work(debounced=None), using="default")

        self.assertFalse(Task.objects.filter(user="acme").exists())
        self.assertTrue(Task.objects.filter(user="other", key="other-4").exists())

    def test_the_trail_of_who_is_named_much_alike_stays(self):
        alike = ("acme ", " acme", "Acme", "acm\u00e9")
        for number, user in enumerate(alike):
            Schedules().put(f"alike-{number}", "report", every=60, user=user)
        before = Change.objects.filter(name__startswith="alike-").count()

        forget_user("acme", using="default")

        after = Change.objects.filter(name__startswith="alike-").count()
        self.assertEqual((after, before), (len(alike), len(alike)))

    def test_only_one_user_is_forgotten_by_its_name(self):
        for name in ("", "*"):
            with self.subTest(name), self.assertRaises(InvalidTaskError):
                forget_user(name, using="default")
        self.assertEqual(Task.objects.count(), 6)
