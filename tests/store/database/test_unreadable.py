"""Rows that were written past the door, and that no driver or program can read."""

from unittest import skipUnless

from django.contrib.auth import get_user_model
from django.db import DatabaseError, connection, transaction
from django.test import TransactionTestCase, tag
from django.urls import reverse

from django_perfectqueue import store
from django_perfectqueue.exceptions import NotSupportedError
from django_perfectqueue.models import Account, DeadLetter, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.claims.backlog_age import oldest_due, overdue

from ...factories import acquire, assert_books_balance, finish_and_acquire, register, submit
from ...management.running import run
from ..worst import drop_checks

POISON = {
    "postgresql": ("10000-01-01 00:00:00Z", "0044-03-15 00:00:00Z BC", "infinity"),
    "sqlite": ("10000-01-01 00:00:00", "soon", "2030-02-31 00:00:00"),
    "mysql": ("0001-01-01 00:00:00", "0000-00-00 00:00:00"),
}[connection.vendor]
MOST = 2**31 - 1
"""As often as a task can have been acquired."""


def write(sql, *values):
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def poison(key, **columns):
    """Write into a task's rows what the door would refuse, by default what can't be taken."""
    if not columns and connection.vendor == "sqlite":
        write("UPDATE perfectqueue_task SET data = CAST(x'ff' AS TEXT) WHERE key = %s", key)
    elif not columns:
        columns = {"ticket__attempt": MOST}
    task_id = Queue()[key].id
    for name, value in columns.items():
        table, column = name.split("__")
        own = "id" if table == "task" else "task_id"
        write(f"UPDATE perfectqueue_{table} SET {column} = %s WHERE {own} = %s", value, task_id)


class UnreadableTests(TransactionTestCase):
    def assert_others_run(self, *, time=False, **columns):
        """One is poisoned; all others are taken, and it is out of their way."""
        for number in range(3):
            submit(f"good-{number}", user=f"u{number}", now=None)
        submit("bad", user="u1", priority=1, now=None)
        poison("bad", **columns)
        held = acquire(10, now=None)

        self.assertEqual(
            {lease.key for lease in held} - {"bad"}, {f"good-{number}" for number in range(3)}
        )
        if any(lease.key == "bad" for lease in held):
            self.assertTrue(time, "It can be read, so it runs.")
        else:
            letter = DeadLetter.objects.get(task__key="bad")
            self.assertEqual((letter.status, letter.group), ("failed", "unreadable"))
            self.assertIn("can't be read", letter.message)
        self.assertEqual(acquire(10, now=None), [])
        self.assertEqual(sum(Account.objects.values_list("running", flat=True)), len(held))
        assert_books_balance(self)
        Queue().clear()

    def test_a_time_that_is_none_holds_up_nobody(self):
        drop_checks(self, [Task, Ticket])
        for value in POISON:
            for column in ("ticket__run_at", "task__created_at"):
                with self.subTest(column, value=value):
                    self.assert_others_run(time=True, **{column: value})

    def test_a_row_that_can_t_be_taken_holds_up_nobody(self):
        self.assert_others_run()

    @skipUnless(connection.vendor == "sqlite", "Only SQLite stores text that is none.")
    def test_text_that_is_none_holds_up_nobody(self):
        for column in ("data", "type", "context"):
            with self.subTest(column):
                submit("bad", priority=1)
                sql = f"UPDATE perfectqueue_task SET {column} = CAST(x'ff' AS TEXT)"
                write(sql)
                submit("good")
                self.assertEqual([lease.key for lease in acquire(10)], ["good"])
                Queue().clear()

    def test_what_was_to_be_finished_with_it_is_finished(self):
        submit("done")
        [lease] = acquire(1)
        submit("bad", priority=1)
        submit("good")
        poison("bad")
        done = store.Completion(lease=lease, result=None, started=0.0, ended=0.1)
        held, refused = finish_and_acquire([done], 10)

        self.assertEqual(([one.key for one in held], refused), (["good"], []))
        self.assertEqual(Queue()["done"].metadata().status, "finished")

    @skipUnless(connection.vendor == "postgresql", "Others take several statements.")
    def test_what_is_taken_alone_is_given_back(self):
        submit("bad", priority=1, now=None)
        submit("good", now=None)
        acquire(0, now=None)
        poison("bad")
        Queue()["good"].metadata()
        terms = {"limit": 10, "alive_time": 60, "holder": 5, "using": "default"}
        store.upkeep.wake_forgotten_lanes(using="default")

        self.assertEqual(store.take_alone("default", **terms), [])
        held = store.acquire(["default"], **terms)
        self.assertEqual([(lease.key, lease.crashes) for lease in held], [("good", 0)])

    def test_the_callers_transaction_is_the_callers(self):
        submit("bad", now=None)
        poison("bad")
        with self.assertRaises(DatabaseError), transaction.atomic():
            Queue().poll()
        self.assertEqual(Task.objects.defer("payload").get().outcome, "")

    def test_what_is_due_next_is_seen(self):
        drop_checks(self, [Ticket])
        register()
        submit("bad", run_at=3600, now=None)
        poison("bad", ticket__timer_at=POISON[0])

        # None of them raises.
        store.look(["default"], using="default")
        oldest_due(["default"], using="default")
        overdue(using="default")


class PagesTests(TransactionTestCase):
    """Whatever is in a row, it can be seen and steered."""

    def setUp(self):
        drop_checks(self, [Task, Ticket])
        user = get_user_model().objects.create_superuser("root", password="root")
        self.client.force_login(user)

    @tag("thorough")
    def test_lists_pages_and_commands_stay_usable(self):
        columns = (
            "task__run_at",
            "task__created_at",
            "task__expires_at",
            "task__expected_at",
            "ticket__run_at",
            "ticket__timer_at",
        )
        for value in POISON:
            for column in columns:
                with self.subTest(column, value=value):
                    task = submit("bad", now=None, run_at=3600)
                    poison("bad", **{column: value})
                    for url in (
                        reverse("admin:perfectqueue_task_changelist"),
                        reverse("admin:perfectqueue_task_change", args=[task.id]),
                    ):
                        self.assertEqual(self.client.get(url).status_code, 200)
                    self.assertIn("bad", run("pq_task", "list"))
                    self.assertIn("bad", run("pq_task", "show", "bad"))
                    run("pq_queue", "show")
                    run("pq_task", "cancel", "bad")
                    Queue().clear()

    def test_a_word_that_there_is_not_breaks_no_list(self):
        for columns in ({"task__outcome": "bogus"}, {"ticket__state": 7}):
            with self.subTest(**columns):
                task = submit("bad", now=None)
                submit("good", now=None)
                poison("bad", **columns)
                for url in (
                    reverse("admin:perfectqueue_task_changelist"),
                    reverse("admin:perfectqueue_task_change", args=[task.id]),
                ):
                    self.assertEqual(self.client.get(url).status_code, 200)
                for words in (
                    (
                        "pq_task",
                        "list",
                    ),
                    ("pq_task", "show", "bad"),
                    (
                        "pq_queue",
                        "show",
                    ),
                ):
                    run(*words)
                if "ticket__state" in columns:
                    with self.assertRaises(NotSupportedError):
                        task.retry()
                self.assertIn("good", [lease.key for lease in acquire(5, now=None)])
                Queue().clear()

    def test_a_task_that_was_set_aside_can_be_seen(self):
        task = submit("bad")
        poison("bad", ticket__run_at=POISON[0], task__created_at=POISON[0])
        acquire(1)
        page = self.client.get(reverse("admin:perfectqueue_task_change", args=[task.id]))

        self.assertEqual(page.status_code, 200)


class CalendarTests(TransactionTestCase):
    def test_the_first_and_the_last_time_can_be_stored_and_shown(self):
        from django_perfectqueue.lib.durations import EARLIEST, LATEST

        user = get_user_model().objects.create_superuser("root", password="root")
        self.client.force_login(user)
        for zone in ("Pacific/Kiritimati", "America/Chicago"):
            for number, at in enumerate((EARLIEST, LATEST)):
                with self.subTest(at=at), self.settings(TIME_ZONE=zone):
                    task = submit(f"{zone}-{number}", run_at=at, expected_at=at, now=None)
                    url = reverse("admin:perfectqueue_task_change", args=[task.id])
                    self.assertEqual(task.metadata().run_at, at)
                    self.assertEqual(self.client.get(url).status_code, 200)
