import datetime as dt
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from enum import Enum
from unittest import mock, skipUnless
from zoneinfo import ZoneInfo

from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    IdempotentError,
    InvalidTaskError,
    NotSupportedError,
)
from django_perfectqueue.models import Attempt, DeadLetter, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.database.dialects.postgresql_submit import sends

from ...factories import (
    MINUTE,
    NOON,
    SECOND,
    acquire,
    after,
    elsewhere,
    failed,
    finish,
    keys,
    running,
    status,
    submit,
    submit_many,
)

WAKE = "django_perfectqueue.store.tasks.submit.wake_sleeping"
FIRST = datetime.min.replace(tzinfo=dt.timezone.utc)
LAST = datetime.max.replace(tzinfo=dt.timezone.utc)
TOKYO, CHICAGO = ZoneInfo("Asia/Tokyo"), ZoneInfo("America/Chicago")


class SubmitTests(TestCase):
    def test_a_task_keeps_what_was_submitted(self):
        submit(
            "k1",
            type="user_task",
            data={"uid": 1, "name": "Zoë \x00"},
            user="user_1",
            priority=3,
            run_at=after(60),
            expires_at=after(90),
        )

        row = Task.objects.get(key="k1")
        self.assertEqual(row.data, {"uid": 1, "name": "Zoë \x00"})
        self.assertEqual((row.queue, row.type, row.user), ("default", "user_task", "user_1"))
        self.assertEqual(
            (row.priority, row.created_at, row.run_at, row.expires_at),
            (3, NOON, after(60), after(90)),
        )

    def test_a_taken_key_is_refused_with_an_ignorable_error(self):
        """Who submits twice because it could not know of the first must be able to go on."""
        submit("k1")

        with self.assertRaises(AlreadyExistsError) as caught:
            submit("k1")
        self.assertIsInstance(caught.exception, IdempotentError)
        self.assertEqual(Task.objects.count(), 1)

    def test_a_finished_task_still_refuses_its_key(self):
        _task, held = running("k1")
        finish(held)

        with self.assertRaises(AlreadyExistsError):
            submit("k1")

    def test_a_refused_key_leaves_the_callers_transaction_usable(self):
        """On PostgreSQL an error in a statement would take the caller's work with it."""
        submit("k1")
        with transaction.atomic():
            submit("k2")
            with self.assertRaises(AlreadyExistsError):
                submit("k1")
            submit("k3")

        self.assertEqual(Task.objects.count(), 3)

    def test_keys_are_equal_only_to_themselves(self):
        for key in ("task", "Task", "task ", "tásk", "TASK"):
            submit(key)

        self.assertEqual(Task.objects.count(), 5)
        self.assertEqual(Task.objects.filter(key="task ").count(), 1)

    def test_users_are_equal_only_to_themselves(self):
        for user in ("ann", "Ann", "ann "):
            submit(user=user)

        self.assertEqual(Ticket.objects.values("lane").distinct().count(), 3)

    def test_a_key_is_free_in_every_other_queue(self):
        submit("k1")
        submit("k1", queue="other")

        self.assertEqual(Task.objects.count(), 2)

    def test_a_conflict_can_be_ignored(self):
        submit("k1", data={"first": True})
        submit("k1", data={"first": False}, on_conflict="ignore")

        self.assertEqual(Task.objects.get().data, {"first": True})

    def test_a_conflict_can_replace_what_waits(self):
        submit("k1", data={"first": True}, run_at=after(60))
        task = submit("k1", data={"first": False}, on_conflict="replace")

        self.assertEqual(task.metadata().data, {"first": False})
        self.assertEqual(status(task), "waiting")
        self.assertEqual(Ticket.objects.count(), 1)

    def test_a_conflict_can_replace_what_has_ended(self):
        task = failed("k1")
        submit("k1", on_conflict="replace")

        self.assertEqual(status(task), "waiting")
        self.assertFalse(DeadLetter.objects.exists())
        self.assertFalse(Attempt.objects.exists())

    def test_a_running_task_is_not_replaced(self):
        running("k1", data={"first": True})

        with self.assertRaises(NotSupportedError):
            submit("k1", on_conflict="replace")
        self.assertEqual(Task.objects.get().data, {"first": True})

    def test_a_task_for_later_is_scheduled(self):
        task = submit(run_at=60)

        self.assertEqual(status(task), "scheduled")
        self.assertEqual(status(task, now=after(60)), "waiting")

    def test_times_may_be_given_in_four_ways(self):
        for given in (after(330), timedelta(seconds=330), 330, "5m30s"):
            with self.subTest(given=given):
                self.assertEqual(submit(run_at=given).metadata().run_at, after(330))

    def test_spans_are_added_to_the_servers_clock(self):
        """One host is slow: what it submits starts and expires as if it were not."""
        spans = {"run_at": 30, "expected_at": "40s", "expires_at": timedelta(seconds=60)}
        mixed = {"run_at": timezone.now() - 5 * MINUTE, "expires_at": 60}
        due = {"expected_at": 40}
        slow = timezone.now() - 5 * MINUTE
        with mock.patch.object(timezone, "now", return_value=slow):
            queue = Queue()
            for number, times in enumerate((spans, mixed, due)):
                queue.submit(f"one-{number}", "report", **times)
            many = enumerate((spans, mixed, due, {}))
            queue.submit_many(
                {"key": f"many-{number}", "type": "report", **times} for number, times in many
            )
        for row in Task.objects.select_related("ticket"):
            kind = row.key.partition("-")[2]
            reported = {
                name: (getattr(row, name) - row.created_at).total_seconds()
                for name in ("run_at", "expected_at", "expires_at")
                if getattr(row, name) is not None
            }
            with self.subTest(row.key):
                if kind == "1":
                    self.assertEqual(row.run_at, mixed["run_at"])
                    self.assertEqual((reported["expires_at"], row.ticket.state), (60, 1))
                    self.assertEqual(row.ticket.timer_at, row.run_at)
                elif kind == "0":
                    wanted = {"run_at": 30, "expected_at": 40, "expires_at": 60}
                    self.assertEqual((reported, row.ticket.state), (wanted, 1))
                    self.assertEqual(row.ticket.timer_at, row.run_at)
                if row.expected_at:
                    self.assertEqual(row.ticket.run_at, row.expected_at)

    def test_what_cannot_be_a_task_is_refused_and_nothing_is_stored(self):
        cases = {
            "an empty key": {"key": ""},
            "a key of 256 characters": {"key": "k" * 256},
            "a key that is no text": {"key": 7},
            "a NUL in the key": {"key": "a\x00b"},
            "half a character in the key": {"key": "a\udcff"},
            "half a character in the user": {"user": "a\udcff"},
            "an empty type": {"type": ""},
            "a user of 256 characters": {"user": "u" * 256},
            "data that JSON can't hold": {"data": {1, 2}},
            "data that is no number": {"data": float("nan")},
            "data over the limit": {"data": "x" * 1_048_577},
            "a naive time": {"run_at": NOON.replace(tzinfo=None)},
            "a span that is none": {"run_at": "5 minutes"},
            "a span with a rest": {"run_at": "5m30"},
            "a time out of reach": {"run_at": 1e18},
            "a time before the calendar": {"run_at": FIRST.replace(tzinfo=TOKYO)},
            "a time after the calendar": {"expected_at": LAST.replace(tzinfo=CHICAGO)},
            "an expiry after the calendar": {"expires_at": LAST.replace(tzinfo=CHICAGO)},
            "a span beyond the calendar": {"expected_at": timedelta(days=4_000_000)},
            "a span before the calendar": {"run_at": timedelta(days=-4_000_000)},
            "an expiry before the start": {"run_at": 60, "expires_at": 30},
            "a priority that is none": {"priority": "high"},
            "a priority out of range": {"priority": 2**31},
            "a conflict rule that is none": {"on_conflict": "merge"},
        }
        for name, wrong in cases.items():
            given = {"key": "k1", "type": "report", "data": {}} | wrong
            with self.subTest(name), self.assertRaises(InvalidTaskError):
                Queue().submit(**given)
        self.assertFalse(Task.objects.exists())

    def test_a_priority_may_be_a_number_with_a_name(self):
        class Urgency(int, Enum):
            HIGH = 5

        submit("k1", priority=Urgency.HIGH)
        submit_many(2, priority=Urgency.HIGH)

        self.assertEqual(set(Task.objects.values_list("priority", flat=True)), {5})

    def test_keys_and_users_of_255_characters_fit(self):
        submit("ü" * 255, user="🙂" * 255, type="t" * 255)

        self.assertEqual(Task.objects.get().user, "🙂" * 255)


class SubmitManyTests(TestCase):
    def test_all_are_stored_and_counted(self):
        tasks = ({"key": f"k{n}", "type": "report", "data": n} for n in range(2500))

        self.assertEqual(Queue().submit_many(tasks), 2500)
        self.assertEqual(Task.objects.count(), 2500)
        self.assertEqual(Ticket.objects.count(), 2500)

    def test_any_iterable_is_read_as_it_goes(self):
        """A million tasks must not have to fit in memory."""
        ahead = []
        read = 0

        def source():
            nonlocal read
            for number in range(3000):
                read += 1
                yield {"key": f"k{number}", "type": "report"}

        Queue().submit_many(source(), progress=lambda done: ahead.append(read - done))
        self.assertEqual((max(ahead) <= 1000, len(ahead), ahead[-1]), (True, 3, 0))

    def test_a_taken_key_refuses_its_thousand_and_names_itself(self):
        submit("k5")
        tasks = [{"key": f"k{n}", "type": "report"} for n in range(10)]

        with self.assertRaisesMessage(AlreadyExistsError, "k5"):
            Queue().submit_many(tasks)
        self.assertEqual(Task.objects.count(), 1)

    def test_large_payloads_fit_the_servers_statements(self):
        """MariaDB closes the connection at a statement of 16 MB."""
        tasks = ({"key": f"k{n}", "type": "report", "data": "x" * 40_000} for n in range(500))

        self.assertEqual(Queue().submit_many(tasks), 500)

    def test_taken_keys_may_be_passed_over(self):
        submit("k5")
        tasks = [{"key": f"k{n % 10}", "type": "report"} for n in range(20)]

        self.assertEqual(Queue().submit_many(tasks, on_conflict="ignore"), 9)
        self.assertEqual(Task.objects.count(), 10)

    def test_each_task_keeps_its_own_lane_and_place(self):
        tasks = [
            {"key": "b", "type": "report", "user": "bob", "priority": 1},
            {"key": "a", "type": "report", "user": "ann", "run_at": 60},
            {"key": "c", "type": "report", "user": "bob", "priority": 2},
        ]
        Queue().submit_many(tasks, now=NOON)

        self.assertEqual(keys(acquire(5, lease=600.0)), ["c", "b"])
        self.assertEqual(keys(acquire(5, now=after(60))), ["a"])

    def test_many_are_stored_as_one_by_one(self):
        full = {
            "type": "report",
            "data": {"of": 'a "quoted" \\ text', "none": None},
            "user": "ann",
            "priority": -3,
            "run_at": 60,
            "expected_at": NOON + 2 * MINUTE,
            "expires_at": 3600,
            "limits": ["disk", "api"],
            "time_limit": 2.5,
        }
        plain = {"type": "mail"}
        at = {**full, "run_at": NOON + MINUTE, "expires_at": None, "user": "bob"}
        for number, given in enumerate([[full, full], [plain, plain], [full, plain, at]]):
            for now in (NOON, None):
                with self.subTest(given=given, now=now):
                    tasks = [{**task, "key": f"k{n}"} for n, task in enumerate(given)]
                    many, singly = (Queue(f"{way}-{number}-{now}") for way in ("many", "singly"))
                    many.submit_many(tasks, now=now)
                    for task in tasks:
                        singly.submit(**task, now=now)
                    self.assertEqual(rows(many, now), rows(singly, now))


def rows(queue, now):
    """Return what is stored of its tasks, but what differs from queue to queue or in time."""
    own = {"id", "queue", "created_at", "ticket__task_id", "ticket__lane", "ticket__token"}
    times = {"run_at", "expected_at", "expires_at", "ticket__run_at", "ticket__timer_at"}
    columns = {
        *(field.attname for field in Task._meta.concrete_fields),
        *(f"ticket__{field.attname}" for field in Ticket._meta.concrete_fields),
    }
    left = sorted(columns - own - (times if now is None else set()))
    return list(queue.list().order_by("key").values(*left))


class StatementTests(TransactionTestCase):
    def test_a_thousand_tasks_cost_hardly_more_statements_than_one(self):
        tasks = [{"key": f"k{n}", "type": "report", "user": str(n)} for n in range(1000)]

        with CaptureQueriesContext(connection) as queries:
            Queue().submit_many(tasks)

        self.assertLessEqual(statements(queries), 25)


def statements(queries):
    """Count them, without the notification that comes after the commit."""
    begins = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "SELECT pg_notify")
    return sum(not query["sql"].startswith(begins) for query in queries)


class CallersTransactionTests(TransactionTestCase):
    def test_what_rolls_back_leaves_nothing(self):
        class UndoneError(Exception):
            pass

        with self.assertRaises(UndoneError), transaction.atomic():
            submit("k1")
            Queue().submit_many([{"key": "k2", "type": "report"}])
            raise UndoneError

        self.assertFalse(Task.objects.exists())
        self.assertFalse(Ticket.objects.exists())
        submit("k1")

    def test_a_task_is_seen_only_after_the_commit(self):
        with transaction.atomic():
            submit("k1")
            self.assertEqual(elsewhere(waiting_keys), [])
        self.assertEqual(elsewhere(waiting_keys), ["k1"])

    def test_an_open_transaction_blocks_no_submitter_and_no_acquirer(self):
        """
        A view may stay long in its transaction after it has submitted.

        On SQLite there is one writer at a time, whatever one does.
        """
        if connection.vendor == "sqlite":
            return
        submit("before", user="ann")
        with transaction.atomic():
            submit("inside", user="ann")
            submit("inside-bob", user="bob")
            elsewhere(lambda: submit("outside", user="ann"))
            elsewhere(lambda: submit("outside-bob", user="bob"))
            taken = elsewhere(lambda: keys(acquire(9, now=NOON + SECOND)))

        self.assertEqual(sorted(taken), ["before", "outside", "outside-bob"])
        self.assertEqual(sorted(keys(acquire(9, now=NOON + SECOND))), ["inside", "inside-bob"])


def waiting_keys():
    return list(Task.objects.live().values_list("key", flat=True))


class PacketTests(TransactionTestCase):
    """A submit outside of a transaction is one packet, and its last part may fail by itself."""

    def setUp(self):
        if connection.vendor == "sqlite":
            self.skipTest("SQLite has no server.")
        if connection.vendor == "mysql" and not connection.mysql_is_mariadb:
            self.skipTest("MySQL ends no INSERT for its time.")
        self.addCleanup(connection.close)

    @contextmanager
    def with_option(self, **changes):
        options = {**connection.settings_dict["OPTIONS"], **changes}
        connection.close()
        with mock.patch.dict(connection.settings_dict, OPTIONS=options):
            yield
            connection.close()

    def assert_submits(self):
        with CaptureQueriesContext(connection) as queries:
            submit("a", user="ann", now=None)
            submit("b", user="ann", run_at=60, expires_at=timedelta(hours=1), now=None)
            with self.assertRaises(AlreadyExistsError):
                submit("a", user="ann", now=None)
        self.assertEqual([task.key for task in acquire(9, now=None)], ["a"])
        self.assertEqual(Ticket.objects.count(), 2)
        return max(query["sql"].count("; ") for query in queries)

    def test_it_is_one_packet(self):
        self.assertGreater(self.assert_submits(), 1)

    def test_a_driver_that_takes_one_statement_at_once_gets_one(self):
        one = {"postgresql": {"server_side_binding": True}, "mysql": {"multi_statements": False}}
        if connection.vendor == "postgresql" and not is_psycopg3:
            self.skipTest("psycopg2 binds no parameters on the server.")
        with self.with_option(**one[connection.vendor]):
            self.assertEqual(self.assert_submits(), 0)

    def prepared(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_prepared_statements")
            return cursor.fetchone()[0]

    @skipUnless(connection.vendor == "postgresql", "The others prepare nothing.")
    def test_a_connection_that_submits_again_prepares_it(self):
        connection.close()
        found = []
        for number in range(8):
            submit(f"k{number}", user="ann", data=number + 1, priority=number, now=None)
            found.append(self.prepared())
        self.assertEqual(found, [0, 2, 2, 2, 2, 2, 2, 2])
        stored = Task.objects.order_by("id").values_list("key", "payload", "priority")
        self.assertEqual(list(stored), [(f"k{n}", str(n + 1), n) for n in range(8)])
        with self.assertRaises(AlreadyExistsError):
            submit("k3", user="ann", now=None)

    @skipUnless(connection.vendor == "postgresql", "The others prepare nothing.")
    def test_a_pooler_may_change_the_servers_connection(self):
        for before in (1, 2, 3):
            with self.subTest(before=before):
                connection.close()
                for number in range(before):
                    submit(f"{before}-{number}", user="ann", now=None)
                self.change_statements()
                for number in range(before, 6):
                    submit(f"{before}-{number}", user="ann", now=None)
        self.assertEqual(Task.objects.count(), 20)
        self.assertEqual(Ticket.objects.count(), 20)

    def change_statements(self):
        """Forget what this client has prepared; else prepare it, as another client does."""
        if self.prepared():
            with connection.cursor() as cursor:
                cursor.execute("DEALLOCATE ALL")
            return
        known = sends.pop(connection.connection)
        for number in range(2):
            submit(f"other-{number}", user="ann", now=None)
        sends[connection.connection] = known

    def test_what_fails_after_the_commit_is_no_failure_of_the_submit(self):
        submit("first", user="ann", now=None)
        with hurried(), locked("perfectqueue_account"), mock.patch(WAKE):
            submit("late", user="ann", now=None)
        self.assertEqual(len(acquire(9, now=None)), 2)

    def test_what_fails_before_the_commit_leaves_nothing_behind(self):
        with hurried(), locked("perfectqueue_ticket"), self.assertRaises(DatabaseError):
            submit("first", user="ann", now=None)
        submit("second", user="ann", now=None)
        self.assertEqual([task.key for task in Task.objects.all()], ["second"])


@contextmanager
def hurried():
    """Have the server end statements of this connection that wait."""
    soon = {"postgresql": "statement_timeout = 200", "mysql": "max_statement_time = 0.2"}
    never = {"postgresql": "statement_timeout = 0", "mysql": "max_statement_time = 0"}
    with connection.cursor() as cursor:
        cursor.execute(f"SET {soon[connection.vendor]}")
        yield
        cursor.execute(f"SET {never[connection.vendor]}")


@contextmanager
def locked(table):
    """Lock a table by another connection."""
    other = connections.create_connection("default")
    lock = {
        "postgresql": f"BEGIN; LOCK TABLE {table}",
        "mysql": f"LOCK TABLES {table} WRITE",
    }
    with closing(other), other.cursor() as cursor:
        cursor.execute(lock[connection.vendor])
        yield
