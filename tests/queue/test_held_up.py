"""What another transaction holds for long holds up nothing but what depends on it."""

import time
from datetime import timedelta
from unittest import mock

from django.db import connection, transaction
from django.test import TransactionTestCase

from django_perfectqueue import store
from django_perfectqueue.models import DependencyEvent, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.dependencies import fold

from ..factories import after_statement, completion, elsewhere
from .test_dependencies import finish, status, submit, take


class HeldUpTests(TransactionTestCase):
    def setUp(self):
        if connection.vendor == "sqlite":
            self.skipTest("SQLite has one writer: the other waits.")

    def test_the_end_of_a_parent_does_not_wait_for_who_changes_its_child(self):
        submit("a"), submit("x"), submit("b", "a")
        task = take("a")
        with transaction.atomic():
            Queue()["b"].wait_for(["x"])
            elsewhere(task.finish)
            self.assertEqual(status("a"), "finished")
        store.records.follow(using="default")
        self.assertEqual(status("b"), "blocked")
        finish("x")
        finish("b")

    def test_the_end_of_a_parent_does_not_wait_for_who_replaces_its_child(self):
        submit("a"), submit("b", "a"), submit("c", "a")
        task = take("a")
        with transaction.atomic():
            submit("b", "a", on_conflict="replace")
            elsewhere(task.finish)
        store.records.follow(using="default")
        self.assertEqual([take(key).key for key in "cb"], ["c", "b"])

    def test_many_that_wait_for_what_is_held_hold_up_no_others(self):
        # "d" is between them in the index of keys: beside a deleted one MariaDB locks the gap.
        submit("a"), submit("b", "a"), submit("d")
        held = submit("p").id
        with transaction.atomic():
            Ticket.objects.select_for_update().get(pk=held)
            keys = [f"c{number}" for number in range(450)]
            tasks = [{"key": key, "type": "report", "after": ["p"]} for key in keys]
            elsewhere(lambda: Queue().submit_many(tasks))
            elsewhere(lambda: finish("a"))
            elsewhere(lambda: store.records.follow(using="default"))
            self.assertEqual(elsewhere(lambda: status("b")), "waiting")
        store.records.follow(using="default")
        self.assertFalse(DependencyEvent.objects.exists())

    def test_events_that_wait_for_what_is_held_are_not_waited_for_at_each_end(self):
        for number in range(5):
            submit(f"a{number}"), submit(f"b{number}", f"a{number}", priority=-1)
        held = submit("p").id
        with transaction.atomic():
            Ticket.objects.select_for_update().get(pk=held)
            elsewhere(lambda: submit("c", "p"))
            with mock.patch.object(fold, "time", wraps=time) as clock:
                for number in range(5):
                    elsewhere(lambda number=number: finish(f"a{number}"))
            self.assertLessEqual(clock.sleep.call_count, len(fold.PAUSES))
            self.assertEqual(elsewhere(lambda: status("b4")), "waiting")
        store.records.follow(using="default")
        self.assertFalse(DependencyEvent.objects.exists())

    def test_who_has_submitted_a_child_holds_up_no_ends_and_no_deletion(self):
        for number in range(4):
            submit(f"p{number}"), submit(f"c{number}", f"p{number}"), submit(f"old{number}")
        submit("open")
        with transaction.atomic():
            for task in Queue().acquire(8):
                task.finish()
        with transaction.atomic():
            submit("late", "open")
            elsewhere(lambda: [task.finish() for task in Queue().acquire(3)])
            self.assertEqual(elsewhere(lambda: Queue().purge(timedelta(0))), 10)
            elsewhere(end_together)
        self.assertEqual(take("late").key, "late")

    def test_who_has_submitted_a_task_holds_up_no_other_tasks(self):
        """Small tables are where a database would rather read every row."""
        for count in (1, 2, 3, 6, 12, 40):
            with self.subTest(count):
                Queue().submit_many({"key": f"{count}-{n}", "type": "report"} for n in range(count))
                with transaction.atomic():
                    submit(f"open-{count}")
                    self.assertEqual(elsewhere(release_all_and_finish_all), count)
                Queue().clear()

    def test_a_task_put_back_while_the_end_of_its_parent_is_acted_on_goes_on(self):
        for if_failed in ("wait", "run"):
            a, b = f"a-{if_failed}", f"b-{if_failed}"
            submit(a), submit(b, a, if_failed=if_failed)
            task = take(a)
            Queue()[b].cancel_request()
            with after_statement('UPDATE "perfectqueue_dependency"', Queue()[b].retry):
                task.finish()
            store.records.follow(using="default")
            finish(b)

    def test_a_callback_put_back_while_the_end_of_its_batch_is_acted_on_goes_on(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
            batch.then("b", "report")
        task = take("a")
        Queue()["b"].cancel_request()
        with after_statement('UPDATE "perfectqueue_dependency"', Queue()["b"].retry):
            task.finish()
        store.records.follow(using="default")
        finish("b")


def release_all_and_finish_all():
    store.settle(
        [task.lease for task in Queue().acquire(100)], store.Ending.release(), using="default"
    )
    taken = [task.lease for task in Queue().acquire(100)]
    store.leases.heartbeat(taken, using="default", alive_time=90.0)
    store.finish([completion(lease) for lease in taken], using="default")
    return len(taken)


def end_together():
    with transaction.atomic():
        for task in Queue().acquire(20):
            task.finish()


class OldSnapshotTests(TransactionTestCase):
    """A transaction at REPEATABLE READ that began to read before a child was submitted."""

    def setUp(self):
        if connection.vendor != "mysql":
            self.skipTest("Elsewhere such a transaction fails, and the caller repeats it.")
        with connection.cursor() as cursor:
            cursor.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
            if dict(cursor.fetchall()).get("innodb_snapshot_isolation") == "ON":
                self.skipTest("From MariaDB 11.6 on such a transaction fails, too.")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.addCleanup(connection.close)
        self.enterContext(mock.patch.object(connection, "isolation_level", "repeatable read"))

    def test_a_replaced_parent_is_waited_for_anew(self):
        submit("a")
        with transaction.atomic():
            status("a")
            elsewhere(lambda: submit("b", "a"))
            submit("a", on_conflict="replace")
        store.records.follow(using="default")
        finish("a")
        finish("b")

    def test_a_cleared_parent_cancels_what_waits_for_it(self):
        submit("a")
        with transaction.atomic():
            status("a")
            elsewhere(lambda: Queue("other").submit("b", "report", after=[Queue()["a"]]))
            Queue().clear()
        store.records.follow(using="default")
        self.assertEqual(status("b", "other"), "cancelled")
