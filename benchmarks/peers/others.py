"""Queues with tasks and workers of their own kind."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence
from typing import Any

from benchmarks.database import Target

from .base import ONE_BY_ONE, DjangoPeer, Peer, manage, script

MANUAL = {"name": "benchmark", "timeout": 90, "retry": 120, "queue_limit": 50, "bulk": 10}


class DjangoQ2(DjangoPeer):
    """``manage.py qcluster`` with the broker in the database, as its manual shows it."""

    packages = ("django-q2",)
    metrics = ONE_BY_ONE
    apps = ("django.contrib.contenttypes", "django.contrib.auth", "django_q")
    table = "django_q_ormq"
    runs = "django_q.tasks:async_task"
    size = 0.2

    def settings(self, processes: int) -> dict[str, Any]:
        return {"Q_CLUSTER": {**MANUAL, "workers": processes, "orm": "default"}}

    def prepare(self) -> None:
        super().prepare()
        logging.getLogger("django-q").setLevel(logging.WARNING)

    def submit(self, index: int) -> None:
        self.noop("benchmarks.probe.note", index)

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("qcluster")]


class Huey(Peer):
    """``huey_consumer`` with processes; at most once."""

    packages = ("huey", "peewee")
    metrics = ONE_BY_ONE
    table = "task"
    runs = "benchmarks.workers.huey:noop"
    size = 0.5

    def submit(self, index: int) -> None:
        self.noop(index)

    def workers(self, processes: int) -> list[list[str]]:
        queue = "benchmarks.workers.huey.huey"
        return [script("huey_consumer", queue, "-w", processes, "-k", "process")]


class Procrastinate(DjangoPeer):
    """Its Django application, ``manage.py procrastinate worker``."""

    databases = ("postgresql",)
    packages = ("procrastinate", "psycopg")
    table = "procrastinate_jobs"
    runs = "benchmarks.workers.procrastinate:noop"
    live = "status IN ('todo', 'doing')"
    apps = ("procrastinate.contrib.django",)
    size = 0.3

    def settings(self, processes: int) -> dict[str, Any]:
        return {"PROCRASTINATE_IMPORT_PATHS": ["benchmarks.workers.procrastinate"]}

    def submit(self, index: int) -> None:
        self.noop.defer(i=index)

    def submit_many(self, indexes: Sequence[int]) -> None:
        self.noop.batch_defer(*({"i": index} for index in indexes))

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("procrastinate", "worker")] * processes


class PgQueuer(Peer):
    """``pgq run`` with asyncpg, submitting with psycopg; batches of 10 by default."""

    databases = ("postgresql",)
    packages = ("pgqueuer", "asyncpg", "psycopg", "typer")
    table = "pgqueuer"
    size = 4.0

    def __init__(self, target: Target, *, batch: int | None = None) -> None:
        super().__init__(target)
        self.options = [] if batch is None else ["--batch-size", batch]

    def prepare(self) -> None:
        install = script("pgq", "--pg-dsn", self.target.dsn, "install")
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        import psycopg
        from pgqueuer.db import SyncPsycopgDriver
        from pgqueuer.queries import SyncQueries

        connection = psycopg.connect(self.target.dsn, autocommit=True)
        self.queries = SyncQueries(SyncPsycopgDriver(connection))

    def submit(self, index: int) -> None:
        self.queries.enqueue("noop", b"%d" % index)

    def submit_many(self, indexes: Sequence[int]) -> None:
        payloads: list[bytes | None] = [b"%d" % index for index in indexes]
        self.queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    def workers(self, processes: int) -> list[list[str]]:
        main = "benchmarks.workers.pgqueuer:main"
        return [script("pgq", "run", *self.options, main)] * processes
