"""The worst values in every column of every table, written by SQL: others' tasks go on."""

import io
import signal

from django.contrib.admin import site
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.inspection.steering import sign
from django_perfectqueue.models import (
    BatchDelta,
    DependencyEvent,
    Hold,
    Meter,
    QueueShare,
    Step,
    Task,
    Watch,
)
from django_perfectqueue.payload.journal import entry
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules

from ..factories import acquire, fail, finish, register, seat, submit
from ..waiting import wait_until
from ..worker.workers import WorkerTestCase
from .worst import all_models, bad_rows, must_be_refused

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
        store.Note(
            task_id=lease.task_id,
            key="dead",
            attempt=1,
            progress=0.5,
            stage="half",
            lines=entry(1.9e9, "WARNING", "here", "line"),
        )
    ]
    store.write_journal(notes, using="default")
    fail(lease, now=None)
    submit("running", now=None, **names)
    acquire(now=None, lease=3600.0)
    waiting = submit("waiting", now=None, tags=["red"], limits=["smtp"], **names)
    submit("blocked", after=[waiting], now=None, **names)
    set_share("bad", weight=2)
    QueueShare.objects.create(queue="default", weight=2)
    set_limit("smtp", max_running=5, rate=100)
    with Queue().batch("nightly", user="bad") as batch:
        batch.submit("member", "report", user="bad")
    now = store.clock(using="default")
    task = Task.objects.get(key="done")
    Meter.objects.get_or_create(key="name:smtp", defaults={"next_at": now})
    Hold.objects.create(id=5, queue="default", key="name:smtp", opens_at=now)
    Step.objects.create(task_id=task.pk, name="load", result_text="1", kept_at=now)
    Watch.objects.create(task_id=task.pk, person="1")
    BatchDelta.objects.create(batch_id=1, total=0)
    DependencyEvent.objects.create(task_id=task.pk, kind=0)
    register("default", types=["report"], seats=[seat(1, task.pk)], now=None)
    Schedules().put("hourly", "report", every="1h", user="bad")
    sign([("default", "done")], "retried", by="ann", using="default")
    store.note_waiting(using="default")
    store.roll_up(using="default", keep=86_400.0)
    samples = {model: [model._base_manager.values_list("pk", flat=True).first()]
               for model in all_models()}  # fmt: skip
    samples[Task] = [task.pk, Task.objects.get(key="waiting").pk]
    return samples


COMMANDS = [
    ("pq_list",),
    *(("pq_list", "--status", status) for status in ("waiting", "running", "failed", "finished")),
    ("pq_list", "--json"),
    ("pq_show", "done"),
    ("pq_show", "waiting", "--json"),
    ("pq_stats",),
    ("pq_stats", "--json"),
    ("pq_workers",),
    ("pq_workers", "--json"),
    ("pq_shares",),
    ("pq_shares", "--json"),
    ("pq_share",),
    ("pq_limit",),
    ("pq_schedule", "list"),
    ("pq_schedule", "list", "--json"),
    ("pq_batch", "list"),
    ("pq_batch", "show", "nightly"),
    ("pq_top", "--once"),
    ("pq_metrics",),
    ("pq_health",),
    ("pq_health", "--json"),
    ("pq_purge", "--dry-run"),
]


@override_settings(ROOT_URLCONF="tests.admin.test_scope")
class WorstValueTests(WorkerTestCase):
    def test_others_go_on(self):
        samples = fill()
        self.assertEqual([model for model, pks in samples.items() if None in pks], [])
        rows = list(bad_rows(samples))
        for row in rows:
            if must_be_refused(row):
                with self.subTest(f"{row} is refused"):
                    self.assertNotEqual(row.refused, "")
        kept = [row for row in rows if not row.refused]
        self.run_others()
        self.run_commands()
        self.open_pages(kept)

    def run_others(self):
        worker = self.worker()
        keys = [f"other-{number}" for number in range(OTHERS)]
        for key in keys:
            submit(key, user=key, now=None)
        try:
            wait_until(lambda: all(self.status(key) == "finished" for key in keys), within=30)
        finally:
            worker.send(signal.SIGTERM)
            worker.wait()

    def run_commands(self):
        for command in COMMANDS:
            with self.subTest(command=command):
                out = io.StringIO()
                try:
                    call_command(*command, stdout=out, stderr=out, no_color=True)
                except CommandError as error:
                    out.write(str(error))

    def open_pages(self, kept):
        self.client.force_login(User.objects.create_superuser("boss"))
        for model in site._registry:
            if model._meta.app_label == "perfectqueue":
                name = model._meta.model_name
                with self.subTest(page=name):
                    self.client.get(f"{APP}{name}/")
        for row in kept:
            if row.model in site._registry:
                with self.subTest(page=str(row)):
                    self.client.get(f"{APP}{row.model._meta.model_name}/{row.pk}/change/")
