"""What holds at read committed holds at every isolation level that a project may have set."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from unittest import mock, skipIf, skipUnless

from django.db import OperationalError, connection, transaction
from django.test import TransactionTestCase, tag
from django.test.utils import CaptureQueriesContext

from django_perfectqueue.exceptions import AlreadyExistsError
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.models import Account, FairShare, State, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.claims.sql import mysql as claims_of_mysql
from django_perfectqueue.store.dependencies import fold
from django_perfectqueue.store.records import dependency_events

from ...factories import acquire, assert_books_balance, elsewhere, finish, submit
from ..leases.test_concurrency import Processes, acquire_capped, drain, fork

LEVELS = {"mysql": ["repeatable read", "serializable", None], "postgresql": [3, 4]}
TASKS, USERS = 600, 7


def submit_some(number):
    queue = Queue()
    for task in range(number, TASKS, 2):
        queue.submit(f"k{task}", "report", user=f"u{task % USERS}", limits=["few"])


def finish_all(done):
    with open("/dev/null", "w") as log:
        drain(log, done)


@skipIf(connection.vendor == "sqlite", "SQLite has one isolation level.")
class IsolationTests(TransactionTestCase):
    def setUp(self):
        options = mock.patch.dict(connection.settings_dict["OPTIONS"])
        options.start()
        self.addCleanup(connection.close)
        self.addCleanup(options.stop)

    def set_level(self, level):
        """Have all connections of this test and of its children begin at this level."""
        connection.settings_dict["OPTIONS"]["isolation_level"] = level
        connection.close()

    def test_all_or_none_are_submitted_in_a_savepoint_of_the_callers(self):
        for _level in self.each_level():
            submit("k1")
            with transaction.atomic(), self.assertRaises(AlreadyExistsError):
                Queue().submit_many([{"key": f"k{n}", "type": "report"} for n in (2, 1)])
            with transaction.atomic():
                Queue().submit_many([{"key": "k3", "type": "report"}])
            self.assertEqual(set(Task.objects.values_list("key", flat=True)), {"k1", "k3"})
            Queue().clear()

    def each_level(self):
        for level in LEVELS[connection.vendor]:
            with self.subTest(level=level):
                self.set_level(level)
                yield level

    @tag("thorough")
    def test_each_task_is_given_out_once_and_limits_hold(self):
        for _level in self.each_level():
            set_limit("few", max_running=3)
            with Processes() as processes:
                done = fork.Event()
                workers = [processes.start(finish_all, done) for _number in range(3)]
                clients = [processes.start(submit_some, number) for number in range(2)]
                for process in clients:
                    process.join()
                done.set()
                for process in workers:
                    process.join()

            self.assertEqual([p.exitcode for p in processes.all], [0] * 5)
            self.assertEqual(Task.objects.filter(outcome="finished").count(), TASKS)
            self.assertEqual(set(Task.objects.values_list("attempt", flat=True)), {1})
            assert_books_balance(self)
            Queue().clear()

    def test_of_two_folds_at_once_the_second_sees_what_the_first_has_marked(self):
        """Two parents of one child have ended, and each end is read by another process."""
        for _level in self.each_level():
            Queue().submit_many({"key": key, "type": "report", "user": key} for key in "ab")
            Queue().submit("c", "report", after=["a", "b"])
            with mock.patch.object(dependency_events, "followers", []):
                for task in Queue().acquire(2):
                    task.finish()
            self.fold_at_once()
            dependency_events.follow(using="default")
            self.assertEqual(Queue()["c"].metadata().status, "waiting")
            Queue().clear()

    def fold_at_once(self):
        """Read two events, the second before the first is committed and after it has begun."""
        first_has_locked, second_has_begun, locks = Event(), Event(), fold.Fold.lock

        def lock(batch, children):
            if first_has_locked.is_set():
                second_has_begun.set()
                return locks(batch, children)
            held = locks(batch, children)
            first_has_locked.set()
            second_has_begun.wait(10)
            return held

        def fold_one():
            fold.fold_batch(set(), after=0, using="default", now=None)
            connection.close()

        with (
            mock.patch.object(fold.Fold, "lock", lock),
            mock.patch.object(fold, "EVENTS", 1),
            ThreadPoolExecutor() as pool,
        ):
            first = pool.submit(fold_one)
            first_has_locked.wait(10)
            pool.submit(fold_one).result()
            first.result()

    def test_a_cap_is_never_exceeded(self):
        for _level in self.each_level():
            FairShare.objects.all().delete()
            FairShare.objects.create(user="ann", max_running=3)
            Queue().submit_many(
                {"key": f"k{n}", "type": "report", "user": "ann"} for n in range(200)
            )
            with Processes() as processes:
                ready, stop, excess = fork.Event(), fork.Event(), fork.Value("i", 0)
                for _number in range(3):
                    processes.start(acquire_capped, 3, ready, stop, excess)
                ready.set()
                seen = [0]
                while Ticket.objects.exists() and all(p.is_alive() for p in processes.all):
                    seen.append(Ticket.objects.filter(state=State.RUNNING).count())
                stop.set()

            self.assertEqual(excess.value, 0)
            self.assertLessEqual(max(seen), 3)
            self.assertEqual(Account.objects.get(user="ann").running, 0)
            Queue().clear()

    @skipUnless(connection.vendor == "mysql", "PostgreSQL refuses what has changed, and repeats.")
    def test_no_ticket_is_taken_for_nobody(self):
        """A task is submitted while another transaction is looking for one."""
        for level in self.each_level():
            submit("k1", now=None)
            acquire(1, now=None)
            submit("k2", now=None)
            with self.submitted_on_the_way():
                taken = acquire(10, now=None)
            # At serializable a caller's reads lock what they read.
            if level != "serializable" and not self.is_refused():
                with self.submitted_on_the_way(), transaction.atomic():
                    taken += acquire(10, now=None)

            held = Ticket.objects.filter(state=State.RUNNING).exclude(task__key="k1")
            self.assertEqual(
                {lease.task_id for lease in taken}, set(held.values_list("pk", flat=True))
            )
            for lease in taken:
                finish(lease)
            assert_books_balance(self)
            Queue().clear()

    def is_refused(self):
        """Return whether the server refuses at repeatable read, as MariaDB 11.6 does (1020)."""
        with connection.cursor() as cursor:
            cursor.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
            return dict(cursor.fetchall()).get("innodb_snapshot_isolation") == "ON"

    @skipUnless(connection.vendor == "mysql", "PostgreSQL refuses what has changed, and repeats.")
    def test_what_the_server_refuses_is_the_callers_to_repeat(self):
        self.set_level("repeatable read")
        if not self.is_refused():
            self.skipTest("This server refuses nothing.")
        submit("k1", now=None)
        with (
            self.assertRaisesMessage(OperationalError, "Record has changed since last read"),
            self.submitted_on_the_way(),
            transaction.atomic(),
        ):
            acquire(10, now=None)
        self.assertEqual(len(acquire(10, now=None)), 3)
        assert_books_balance(self)

    def submitted_on_the_way(self):
        """Submit a task elsewhere once an acquire has read who is next."""
        lock = claims_of_mysql.lock_lines

        def late(*given):
            elsewhere(lambda: submit(now=None))
            return lock(*given)

        submit(now=None)
        return mock.patch.object(claims_of_mysql, "lock_lines", late)

    @skipUnless(connection.vendor == "mysql", "Only there the store sets it.")
    def test_what_is_right_costs_no_statement(self):
        for level, wanted in (("read committed", 0), ("repeatable read", 1), (None, 1)):
            with self.subTest(level=level):
                self.set_level(level)
                submit(now=None)
                with CaptureQueriesContext(connection) as queries:
                    submit(now=None)
                reported = [one["sql"] for one in queries if "ISOLATION" in one["sql"].upper()]
                self.assertEqual(len(reported), wanted)
                with transaction.atomic(), CaptureQueriesContext(connection) as queries:
                    submit(now=None)
                self.assertNotIn("ISOLATION", "".join(one["sql"] for one in queries).upper())


@skipUnless(connection.vendor == "sqlite", "Others have no such mode.")
class DeferredTests(TransactionTestCase):
    def test_a_verb_begins_as_a_writer_whatever_mode_a_connection_has(self):
        connection.ensure_connection()
        for mode in ("DEFERRED", None):
            with (
                self.subTest(mode),
                mock.patch.object(connection, "transaction_mode", mode),
                CaptureQueriesContext(connection) as queries,
            ):
                submit()
                self.assertEqual(connection.transaction_mode, mode)
            begins = [q["sql"] for q in queries.captured_queries if q["sql"].startswith("BEGIN")]
            self.assertIn("BEGIN IMMEDIATE", begins[0])
