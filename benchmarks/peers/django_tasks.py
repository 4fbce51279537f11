"""The backends of Django's own tasks: each keeps its connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from .base import ONE_BY_ONE, DjangoPeer, manage


class DjangoTasks(DjangoPeer):
    backend: ClassVar[str]
    runs = "benchmarks.workers.django_tasks:noop"
    size = 0.3
    live = "status IN ('READY', 'RUNNING')"

    def settings(self, processes: int) -> dict[str, Any]:
        return {"TASKS": {"default": {"BACKEND": self.backend, **self.terms(processes)}}}

    def terms(self, processes: int) -> dict[str, Any]:
        return {}

    def submit(self, index: int) -> None:
        self.noop.enqueue(index)


class DjangoTasksDb(DjangoTasks):
    """``manage.py db_worker``."""

    packages = ("django-tasks-db",)
    metrics = ONE_BY_ONE
    apps = ("django_tasks_db",)
    backend = "django_tasks_db.DatabaseBackend"
    table = "django_tasks_database_dbtaskresult"

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("db_worker")] * processes


class DjangoOx(DjangoTasks):
    """``manage.py ox_worker --processes``, one thread each."""

    packages = ("django-ox",)
    apps = ("django_ox",)
    backend = "django_ox.backend.OxBackend"
    table = "django_ox_oxtask"

    def submit_many(self, indexes: Sequence[int]) -> None:
        from django_ox.bulk import enqueue_many

        enqueue_many(self.noop, [((index,), {}) for index in indexes])

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("ox_worker", "--processes", processes)]


class DjQueue(DjangoTasks):
    """``manage.py dj_queue``, processes as asked, three threads each."""

    packages = ("dj-queue",)
    apps = ("dj_queue",)
    backend = "dj_queue.backend.DjQueueBackend"
    table = "dj_queue_jobs"
    live = "finished_at IS NULL"

    def terms(self, processes: int) -> dict[str, Any]:
        return {"QUEUES": [], "OPTIONS": {"workers": [{"processes": processes}]}}

    def submit_many(self, indexes: Sequence[int]) -> None:
        backend: Any = self.noop.get_backend()
        backend.enqueue_all([(self.noop, [index], {}) for index in indexes])

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("dj_queue")]
