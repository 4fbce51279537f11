"""The worst values in every column of every table, written by SQL: others' tasks go on."""

import contextlib
import io
import itertools
import signal

from django.contrib.admin import site
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import Error, connection, transaction
from django.test import TestCase, override_settings, tag

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import (
    Account,
    BatchDelta,
    DependencyEvent,
    Hold,
    Lane,
    Limit,
    Meter,
    QueueShare,
    Schedule,
    Step,
    Task,
    Ticket,
    Usage,
    Watch,
    Worker,
)
from django_perfectqueue.models.fields import conditions
from django_perfectqueue.payload.journal import entry
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.store.records import sign
from django_perfectqueue.store.values import Note

from ..factories import acquire, fail, finish, processor, register, submit
from ..waiting import wait_until
from ..worker.workers import WorkerTestCase
from .worst import FORBIDDEN, all_models, bad_rows, columns, must_be_refused

OTHERS = 6
APP = "/admin/perfectqueue/"


def fill():
    """Store one of all that there is, and return the samples by their models."""
    names = {"user": "bad", "type": "report"}
    submit("done", now=None, **names)
    finish(*acquire(now=None), result='"well"', now=None)
    submit("dead", now=None, **names)
    [lease] = acquire(now=None)
    notes = [
        Note(
            task_id=lease.task_id,
            key="dead",
            attempt=1,
            progress=0.5,
            stage="half",
            lines=entry(1.9e9, "WARNING", "here", "line"),
        )
    ]
    store.records.write_journal(notes, using="default")
    fail(lease, now=None)
    submit("running", now=None, **names)
    acquire(now=None, lease=3600.0)
    set_limit("smtp", max_running=5, rate=100)
    waiting = submit("waiting", now=None, tags=["red"], limits=["smtp"], **names)
    submit("blocked", after=[waiting], now=None, **names)
    store.upkeep.wake_forgotten_lanes(using="default")
    set_share("bad", weight=2)
    QueueShare.objects.create(queue="default", weight=2)
    with Queue().batch("nightly", user="bad") as batch:
        batch.submit("member", "report", user="bad")
    now = store.records.clock(using="default")
    task = Task.objects.get(key="done")
    Meter.objects.get_or_create(key="name:smtp", defaults={"next_at": now})
    Hold.objects.create(id=5, queue="default", key="name:smtp", opens_at=now)
    Step.objects.create(task_id=task.pk, name="load", result_text="1", kept_at=now)
    Watch.objects.create(task_id=task.pk, person="1")
    BatchDelta.objects.create(batch_id=1, total=0)
    DependencyEvent.objects.create(task_id=task.pk, kind=0)
    register("default", types=["report"], states=[processor(1, task.pk)], now=None)
    Schedules().put("hourly", "report", every="1h", user="bad")
    sign([("default", "done")], "retried", by="ann", using="default")
    store.records.note_waiting(using="default")
    store.records.roll_up(using="default", keep=86_400.0)
    samples = {model: [model._base_manager.values_list("pk", flat=True).first()]
               for model in all_models()}  # fmt: skip
    samples[Task] = [task.pk, Task.objects.get(key="waiting").pk]
    return samples


COMMANDS = [
    (
        "pq_task",
        "list",
    ),
    *(
        ("pq_task", "list", "--status", status)
        for status in ("waiting", "running", "failed", "finished")
    ),
    ("pq_task", "list", "--json"),
    ("pq_task", "show", "done"),
    ("pq_task", "show", "waiting", "--json"),
    ("pq_queue", "list"),
    ("pq_queue", "list", "--json"),
    (
        "pq_status",
        "workers",
    ),
    ("pq_status", "workers", "--json"),
    (
        "pq_user",
        "report",
    ),
    ("pq_user", "report", "--json"),
    ("pq_user", "list"),
    ("pq_limit", "list"),
    ("pq_schedule", "list"),
    ("pq_schedule", "list", "--json"),
    ("pq_batch", "list"),
    ("pq_batch", "show", "nightly"),
    ("pq_status",),
    (
        "pq_status",
        "metrics",
    ),
    (
        "pq_status",
        "health",
    ),
    ("pq_status", "health", "--json"),
    ("pq_queue", "purge", "--dry-run"),
]


class RefusalTests(TestCase):
    """What is quick of it: every column has its bounds, and the database holds to them."""

    def test_every_column_that_can_hold_what_cannot_be_read_has_a_condition(self):
        for model in all_models():
            for field in columns(model):
                if isinstance(field, FORBIDDEN) or field.choices:
                    with self.subTest(model=model, column=field.name):
                        self.assertIn(field.name, conditions[model])

    def test_the_database_refuses_what_stopped_everybody(self):
        fill()
        for model, column, value in (
            (Account, "virtual_time", float("inf")),
            (Account, "cost", 1e308),
            (Lane, "keys", "{"),
            (Ticket, "state", 9),
            (Meter, "next_at", "0001-01-01 00:00:00"),
            (Schedule, "every", -1.0),
            (Schedule, "next_at", "9999-12-31 23:00:00"),
            (Schedule, "overlap", "?"),
            (Usage, "seconds", 1e308),
            (Limit, "scope", "?"),
            (Worker, "routes", "[1"),
            (Task, "outcome", "?"),
        ):
            table = connection.ops.quote_name(model._meta.db_table)
            column = connection.ops.quote_name(column)
            with (
                self.subTest(table=table, column=column),
                self.assertRaises(Error),
                transaction.atomic(),
                connection.cursor() as cursor,
            ):
                cursor.execute(f"UPDATE {table} SET {column} = %s", [value])


@tag("thorough")
@override_settings(ROOT_URLCONF="tests.admin.test_scope")
class WorstValueTests(WorkerTestCase):
    """
    Each of the worst values that a column admits stands in a row of its own, all of them at once.
    """

    def test_others_go_on(self):
        kept = self.store_worst()
        self.run_others()
        self.run_commands()
        self.open_pages(kept)

    def store_worst(self):
        """Store them; return those that were not refused."""
        samples = fill()
        self.assertEqual([model for model, pks in samples.items() if None in pks], [])
        rows = list(bad_rows(samples))
        for row in rows:
            if must_be_refused(row):
                with self.subTest(f"{row} is refused"):
                    self.assertNotEqual(row.refused, "")
        return [row for row in rows if not row.refused]

    def run_others(self):
        """Have a worker run the tasks of other users; none of its processes dies."""
        worker = self.worker()
        keys = [f"other-{number}" for number in range(OTHERS)]
        for key in keys:
            submit(key, user=key, now=None)
        Schedules().put("other", "report", every="1s", user="other")
        ticks = Task.objects.filter(key__startswith="other@", outcome="finished")
        try:
            wait_until(lambda: all(self.status(key) == "finished" for key in keys), within=60)
            wait_until(ticks.exists)
        finally:
            worker.send(signal.SIGTERM)
            self.assertEqual(worker.wait(), 0, worker.errors[-3000:])
        self.assertNotIn("Traceback", worker.errors, worker.errors[-3000:])
        self.assertNotIn(" died", worker.errors, worker.errors[-3000:])

    def run_commands(self):
        for command in COMMANDS:
            with self.subTest(command=command):
                out = io.StringIO()
                with contextlib.suppress(CommandError):
                    call_command(*command, stdout=out, stderr=out, no_color=True)

    def open_pages(self, kept):
        """Open each list, and the page of each row."""
        self.client.force_login(User.objects.create_superuser("boss"))
        for model in site._registry:
            if model._meta.app_label == "perfectqueue":
                with self.subTest(page=model._meta.model_name):
                    self.client.get(f"{APP}{model._meta.model_name}/")
        # Django's icon for a boolean knows no third value; the constraint refuses one.
        shown = [row for row in kept if row.model in site._registry and row.value != 7]
        for _column, some in itertools.groupby(shown, lambda row: (row.model, row.column)):
            for row in list(some)[-1:]:
                with self.subTest(page=str(row)):
                    self.client.get(f"{APP}{row.model._meta.model_name}/{row.pk}/change/")
