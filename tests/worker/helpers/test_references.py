"""Rows of other apps that refer to tasks by a foreign key of the database."""

from contextlib import contextmanager
from unittest import mock

from django.core.management import CommandError, call_command
from django.db import connection, models
from django.test import TransactionTestCase, tag
from django.test.utils import isolate_apps

from django_perfectqueue.checks.project import check_references
from django_perfectqueue.exceptions import NotSupportedError
from django_perfectqueue.models import Batch, BatchDelta, Task, Worker
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.upkeep.deletion import delete_ended

from ...factories import acquire, finish, submit
from ...waiting import wait_until
from ..workers import WorkerTestCase

PURGING = {"RETENTION": {"*": 0.0}, "PURGE_INTERVAL": 0.2}


def order_of(app_label="tests", **options):
    """Return a model of a shop, an order of which has a task."""

    class Order(models.Model):
        task = models.ForeignKey(Task, models.SET_NULL, null=True, related_name="+", **options)

        class Meta:
            app_label = "tests"
            db_table = "shop_order"

    return Order


@contextmanager
def referring(table, target):
    """Make a table whose rows refer to those of a model; yield its manager."""
    with isolate_apps("tests"):

        class Row(models.Model):
            to = models.ForeignKey(target, models.DO_NOTHING, related_name="+")

            class Meta:
                app_label = "tests"
                db_table = table

    with connection.schema_editor() as editor:
        editor.create_model(Row)
    try:
        yield Row.objects
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(Row)


class ReferenceCase(TransactionTestCase):
    def setUp(self):
        super().setUp()
        with isolate_apps("tests"):
            self.order = order_of()
        with connection.schema_editor() as editor:
            editor.create_model(self.order)
        self.addCleanup(self.drop)

    def drop(self):
        with connection.schema_editor() as editor:
            editor.delete_model(self.order)

    def finished(self, *keys):
        for key in keys:
            submit(key, now=None)
        finish(*acquire(len(keys), now=None), now=None)

    def refer(self, *keys):
        for key in keys:
            self.order.objects.create(task_id=Task.objects.get(key=key).pk)


class PurgeTests(ReferenceCase):
    def test_it_deletes_all_others(self):
        keys = [f"k{number}" for number in range(20)]
        self.finished(*keys)
        self.refer("k3", "k11")
        deleted = Queue().purge(0)
        self.assertEqual(deleted, 18)
        self.assertEqual(set(Task.objects.values_list("key", flat=True)), {"k3", "k11"})
        self.assertEqual(Task.objects.get(key="k3").status, "finished")

    def test_clear_forgets_all_others_and_names_what_refers(self):
        """Of live tasks and of ended ones; the one that is kept is whole, and may run."""
        self.finished("ended", "ended-kept")
        for key in ("waits", "waits-kept"):
            submit(key, now=None)
        self.refer("ended-kept", "waits-kept")
        with self.assertLogs("django_perfectqueue.queue", "WARNING") as logs:
            self.assertEqual(Queue().clear(), 2)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("Rows of 'shop_order' refer to tasks by 'task_id'", logs.output[0])
        left = set(Task.objects.values_list("key", flat=True))
        self.assertEqual(left, {"ended-kept", "waits-kept"})
        self.assertEqual([lease.key for lease in acquire(2, now=None)], ["waits-kept"])

    def test_the_command_clears_and_purges_around_them(self):
        self.finished("gone", "kept")
        self.refer("kept")
        with self.assertLogs("django_perfectqueue.queue", "WARNING"):
            call_command("pq_queue", "purge", "--older-than=0s", "--yes", verbosity=0)
        self.assertEqual(Task.objects.get().key, "kept")
        submit("later", now=None)
        with self.assertLogs("django_perfectqueue.queue", "WARNING"):
            call_command("pq_queue", "clear", "default", "--yes", verbosity=0)
        self.assertEqual(Task.objects.get().key, "kept")

    def test_one_says_what_refers_to_it(self):
        self.finished("k0")
        self.refer("k0")
        with self.assertRaisesRegex(NotSupportedError, "'shop_order' refer to tasks by 'task_id'"):
            delete_ended(Task.objects.get().pk, using="default")

    def test_one_that_is_refused_for_what_nobody_can_see(self):
        keys = [f"k{number}" for number in range(5)]
        self.finished(*keys)
        self.refer("k2")
        with mock.patch.object(connection.introspection, "table_names", return_value=[]):
            self.assertEqual(Queue().purge(0), 4)
        self.assertEqual(Task.objects.get().key, "k2")


@tag("thorough")
class RunningTests(ReferenceCase, WorkerTestCase):
    def test_a_worker_purges_around_them_and_goes_on(self):
        """Its registration is renewed, other tasks run, and pq_status health names the table."""
        self.finished("kept", "gone")
        self.refer("kept")
        worker = self.worker(**PURGING).ready()
        wait_until(lambda: not Task.objects.filter(key="gone").exists())
        wait_until(lambda: Worker.objects.filter(problem__contains="shop_order").exists())
        seen = Worker.objects.get().seen_at
        self.submit("later", "echo")
        wait_until(lambda: not Task.objects.filter(key="later").exists())
        wait_until(lambda: Worker.objects.get().seen_at > seen)
        self.assertEqual(Task.objects.get().key, "kept")
        with self.assertRaisesRegex(CommandError, "Rows of 'shop_order' refer to tasks"):
            call_command("pq_status", "health", verbosity=0)
        self.assertEqual(worker.errors.count("step=purge"), 1, worker.errors)

    def test_several_tables_are_named_together_and_logged_once(self):
        with referring("shop_invoice", Task) as invoices:
            self.finished("a", "b")
            self.refer("a")
            invoices.create(to_id=Task.objects.get(key="b").pk)
            worker = self.worker(**PURGING).ready()
            named = Worker.objects.filter(problem__contains="shop_order")
            named = named.filter(problem__contains="shop_invoice")
            wait_until(named.exists)
            seen = Worker.objects.get().seen_at
            wait_until(lambda: Worker.objects.get().seen_at > seen)
            self.assertTrue(named.exists())
            self.assertEqual(worker.errors.count("step=purge"), 1, worker.errors)

    def test_counts_that_no_column_can_hold_keep_the_janitor_from_nothing_else(self):
        self.finished("gone")
        with Queue().batch("nightly") as batch:
            batch.submit("member", "echo", run_at=600)
        most = 2**63 - 1 if connection.vendor == "sqlite" else 2**31 - 1
        BatchDelta.objects.bulk_create(BatchDelta(batch_id=batch.id, total=most) for _ in range(2))
        worker = self.worker(**PURGING).ready()
        wait_until(lambda: Worker.objects.filter(problem__contains="dependencies").exists())
        wait_until(lambda: not Task.objects.filter(key="gone").exists())
        self.assertIn("step=dependencies", worker.errors)

    def test_a_step_that_fails_holds_up_no_other(self):
        """A row of a batch that can't be deleted stops neither timers nor purge nor leases."""
        self.finished("gone")
        batch = Batch.objects.create(
            queue="default", name="b", created_at="2020-01-01T00:00Z", ended_at="2020-01-01T00:00Z"
        )
        with referring("shop_note", Batch) as notes:
            notes.create(to_id=batch.pk)
            worker = self.worker(**PURGING).ready()
            wait_until(lambda: not Task.objects.filter(key="gone").exists())
            wait_until(lambda: Worker.objects.filter(problem__contains="batches").exists())
            self.submit("later", "echo", run_at=0.5)
            wait_until(lambda: not Task.objects.filter(key="later").exists())
            self.assertIn("step=batches", worker.errors)


class CheckTests(TransactionTestCase):
    @isolate_apps("tests")
    def test_a_key_with_a_constraint_is_warned_of(self):
        from django.apps import apps

        order = order_of()
        with mock.patch.object(apps, "get_models", return_value=[order]):
            [found] = check_references()
        self.assertEqual((found.id, found.level), ("perfectqueue.W022", 30))
        self.assertIn("Order.task", found.msg)
        self.assertIn("db_constraint=False", found.hint)

    @isolate_apps("tests")
    def test_one_without_is_not(self):
        from django.apps import apps

        order = order_of(db_constraint=False)
        with mock.patch.object(apps, "get_models", return_value=[order, Task]):
            self.assertEqual(check_references(), [])
