"""What the way of a task costs: counted, not timed."""

from unittest import skipUnless

from django.db import connection
from django.test import TransactionTestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.runtime.pace import MOST
from tests.factories import acquire, completion, finish, running, submit, submit_many

ROUND_TRIPS = {"postgresql": 0.05, "sqlite": 0.07, "mysql": 0.07}
ONE_SUBMIT = {"postgresql": 1, "sqlite": 4, "mysql": 5}
ONE_FINISH = {"postgresql": 1, "sqlite": 3, "mysql": 5}
WAL_BYTES = 1_200
PURGE_BYTES = 150


def drain():
    """Take and finish as a processor does whose tasks are short; return how many."""
    holder, done, returned = store.new_holder(), 0, []
    while True:
        held = acquire(MOST, now=None, holder=holder, finished=returned, worker="host-1:12345")
        done += len(returned)
        if not held:
            return done
        returned = [completion(lease) for lease in held]


class DrainTests(TransactionTestCase):
    def test_a_batch_costs_a_few_statements_and_one_commit(self):
        count = 10 * MOST
        submit_many(count, now=None)

        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(drain(), count)

        commits = sum(query["sql"].startswith("COMMIT") for query in queries)
        self.assertLessEqual(len(queries) / count, ROUND_TRIPS[connection.vendor])
        self.assertLessEqual(commits / count, 0.03)

    @skipUnless(connection.vendor == "postgresql", "Only PostgreSQL tells how much it logged.")
    def test_the_log_grows_by_little_from_submit_to_finish(self):
        """Its every byte is written, flushed, shipped to standbys and kept in backups."""
        count = 20 * MOST
        submit(now=None)
        drain()
        before = log_position()
        submit_many(count, now=None)
        self.assertEqual(drain(), count)

        self.assertLessEqual((log_position() - before) / count, WAL_BYTES)
        self.assertEqual(Task.objects.filter(outcome="finished").count(), count + 1)

    @skipUnless(connection.vendor == "postgresql", "Only PostgreSQL tells how much it logged.")
    def test_the_log_grows_by_a_tenth_of_that_for_a_purge(self):
        submit_many(5 * MOST, now=None)
        count = drain()
        before = log_position()
        purged = store.purge({"finished": 0.0}, using="default").deleted

        self.assertEqual(purged, count)
        self.assertLessEqual((log_position() - before) / count, PURGE_BYTES)


def log_position():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
        return cursor.fetchone()[0]


class OneTaskTests(TransactionTestCase):
    def test_a_submit_is_one_statement_where_the_database_can(self):
        submit()

        with CaptureQueriesContext(connection) as queries:
            store.submit([Queue()._submission("k1", "report", {}, user="ann")], using="default")

        self.assertLessEqual(without_frames(queries), ONE_SUBMIT[connection.vendor])

    def test_a_finish_is_one_statement_where_the_database_can(self):
        _task, held = running(now=None)

        with CaptureQueriesContext(connection) as queries:
            finish(held, now=None)

        self.assertLessEqual(without_frames(queries), ONE_FINISH[connection.vendor])

    def test_looking_at_an_idle_queue_costs_few_statements(self):
        submit(run_at=3600)
        acquire()

        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(acquire(now=None), [])
        self.assertLessEqual(len(queries), 8)


def without_frames(queries):
    frames = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE")
    return sum(not query["sql"].startswith(frames) for query in queries)
