"""What a task costs, counted: statements by the table of ``benchmarks.figures``, bytes of log."""

from unittest import skipUnless

from django.db import connection
from django.test import TransactionTestCase

from django_perfectqueue import compat
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.values import new_holder
from django_perfectqueue.worker.processor.pacing import MOST
from tests.factories import (
    completion,
    finish_and_acquire,
    purge,
    submit,
    submit_many,
)

from ..databases.environment import kind_of

WAL_BYTES = 1_200
# From an acquire to the finish, with one task a user: an account is written by both.
WAL_BYTES_OF_ONE = 1_350
PURGE_BYTES = 150


@skipUnless(compat.HAS_TASKS, "There are no tasks of Django's, which are counted as well.")
class TableTests(TransactionTestCase):
    def test_no_operation_takes_more_statements_or_transactions_than_the_table_says(self):
        try:
            from benchmarks.figures import database, table
        except ImportError:
            self.skipTest("The benchmarks are not beside the tests.")
        kind = kind_of(connection).replace("mysql", "mariadb")
        _versions, figures = table.read()

        counted = {f"{name}-{kind}": part for name, part in database.count_operations().items()}

        self.assertEqual(table.risen(figures, counted), [])


def drain(most=MOST):
    """Take and finish as a processor does whose tasks are short; return how many."""
    holder, done, returned = new_holder(), 0, []
    while True:
        held, _refused = finish_and_acquire(
            returned, most, now=None, holder=holder, worker="host-1:12345"
        )
        done += len(returned)
        if not held:
            return done
        returned = [completion(lease) for lease in held]


class LogTests(TransactionTestCase):
    @skipUnless(connection.vendor == "postgresql", "Only PostgreSQL tells how much it logged.")
    def test_the_log_grows_by_little_from_submit_to_finish(self):
        """Its every byte is written, flushed, shipped to standbys and kept in backups."""
        count = 800
        submit(now=None)
        drain()
        before = log_position()
        submit_many(count, now=None)
        self.assertEqual(drain(), count)

        self.assertLessEqual((log_position() - before) / count, WAL_BYTES)
        self.assertEqual(Task.objects.filter(outcome="finished").count(), count + 1)

    @skipUnless(connection.vendor == "postgresql", "Only PostgreSQL tells how much it logged.")
    def test_most_charges_of_users_with_one_task_each_touch_no_index(self):
        count = 800
        tasks = ({"key": f"k{n}", "type": "noop", "user": f"u{n}"} for n in range(count))
        Queue().submit_many(tasks)
        before = log_position(), updates()
        # Of the first ones it is not known yet how long they take.
        self.assertEqual(drain(100), count)

        self.assertLessEqual((log_position() - before[0]) / count, WAL_BYTES_OF_ONE)
        every, by_heap = (now - then for now, then in zip(updates(), before[1], strict=True))
        # Each user is charged twice, and the first time leaves the line of those that are ready.
        self.assertLess(every, 2.2 * count)
        self.assertGreater(by_heap, 0.75 * count)

    @skipUnless(connection.vendor == "postgresql", "Only PostgreSQL tells how much it logged.")
    def test_the_log_grows_by_a_tenth_of_that_for_a_purge(self):
        submit_many(MOST, now=None)
        count = drain()
        before = log_position()
        purged = purge({"finished": 0.0}).deleted

        self.assertEqual(purged, count)
        self.assertLessEqual((log_position() - before) / count, PURGE_BYTES)


def updates():
    """Return how many updates of accounts there were, and how many of them touched no index."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
            " WHERE relname = 'perfectqueue_account'"
        )
        return cursor.fetchone()


def log_position():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
        return cursor.fetchone()[0]
