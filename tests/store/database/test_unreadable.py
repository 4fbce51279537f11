"""Rows written past the door that no program can read: refused, or their tasks fail."""

from unittest import skipUnless

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import DatabaseError, Error, connection, models, transaction
from django.test import TransactionTestCase
from django.urls import reverse
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.models import Account, DeadLetter, Task
from django_perfectqueue.models.fields import JsonTextField
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.values import ClaimRequest

from ...factories import acquire, assert_books_balance, finish_and_acquire, submit

POISON = {
    "postgresql": ("10000-01-01 00:00:00Z", "0044-03-15 00:00:00Z BC", "infinity"),
    "sqlite": ("10000-01-01 00:00:00", "soon", "2030-02-31 00:00:00"),
    "mysql": ("0001-01-01 00:00:00", "0000-00-00 00:00:00"),
}[connection.vendor]
TIMES = (
    "task__run_at",
    "task__created_at",
    "task__expires_at",
    "task__expected_at",
    "ticket__run_at",
    "ticket__timer_at",
)
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
    def test_a_row_that_can_t_be_taken_holds_up_nobody(self):
        for number in range(3):
            submit(f"good-{number}", user=f"u{number}", now=None)
        submit("bad", user="u1", priority=1, now=None)
        poison("bad")
        held = acquire(10, now=None)

        self.assertEqual({lease.key for lease in held}, {f"good-{number}" for number in range(3)})
        letter = DeadLetter.objects.get(task__key="bad")
        self.assertEqual((letter.status, letter.group), ("failed", "unreadable"))
        self.assertIn("can't be read", letter.message)
        self.assertEqual(acquire(10, now=None), [])
        self.assertEqual(sum(Account.objects.values_list("running", flat=True)), len(held))
        assert_books_balance(self)

    def test_a_time_that_is_none_is_refused(self):
        submit("bad", run_at=3600, now=None)
        for value in POISON:
            for column in TIMES:
                with (
                    self.subTest(column, value=value),
                    self.assertRaises(Error),
                    transaction.atomic(),
                ):
                    poison("bad", **{column: value})

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

        self.assertEqual(store.take_alone(ClaimRequest(queues=["default"], **terms)), [])
        held = store.acquire(ClaimRequest(queues=["default"], **terms))
        self.assertEqual([(lease.key, lease.crashes) for lease in held], [("good", 0)])

    def test_the_callers_transaction_is_the_callers(self):
        submit("bad", now=None)
        poison("bad")
        with self.assertRaises(DatabaseError), transaction.atomic():
            Queue().poll()
        self.assertEqual(Task.objects.defer("payload").get().outcome, "")


class FormTests(TransactionTestCase):
    def test_what_the_tables_refuse_can_be_asked_before(self):
        for model in apps.get_app_config("perfectqueue").get_models():
            given = {
                field.name: timezone.now() if isinstance(field, models.DateTimeField) else "[]"
                for field in model._meta.fields
                if isinstance(field, (models.DateTimeField, JsonTextField))
            }
            # Django logs what the database says of a condition, and takes it to hold.
            with self.subTest(model.__name__), self.assertNoLogs("django.db.models"):
                try:
                    model(**given).validate_constraints()
                except ValidationError as error:
                    self.assertTrue(error.message_dict)


class PagesTests(TransactionTestCase):
    def test_a_task_that_was_set_aside_can_be_seen(self):
        user = get_user_model().objects.create_superuser("root", password="root")
        self.client.force_login(user)
        task = submit("bad")
        poison("bad", ticket__attempt=MOST)
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
