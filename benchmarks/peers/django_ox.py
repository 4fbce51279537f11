"""django-ox: ``manage.py ox_worker --processes``, one thread each, connections kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .base import NOW, TOMORROW, DjangoPeer, manage

TABLE = "django_ox_oxtask"


class DjangoOx(DjangoPeer):
    packages = ("django-ox",)
    metrics = ("submit", "bulk", "drain", "snapshot", "latency", "counts")
    backlogs = ("waiting", "scheduled", "finished")
    apps = ("django_ox",)
    size = 0.3

    def settings(self, processes: int) -> dict[str, Any]:
        return {"TASKS": {"default": {"BACKEND": "django_ox.backend.OxBackend"}}}

    def prepare(self) -> None:
        super().prepare()
        from benchmarks.workers.django_tasks import noop

        self.noop = noop

    def submit(self, index: int) -> None:
        self.noop.enqueue(index)

    def submit_many(self, indexes: Iterable[int]) -> None:
        from django_ox.bulk import enqueue_many

        enqueue_many(self.noop, [((index,), {}) for index in indexes])

    def stock(self, kind: str, count: int) -> None:
        where = self.target.kind
        self.submit(0)
        columns = {
            "waiting": {},
            "scheduled": {"run_after": TOMORROW[where]},
            "finished": {"status": "'SUCCESSFUL'", "attempts": "1", "finished_at": NOW[where]},
        }[kind]
        self.copy(TABLE, count, {"id": self.uuid(), **columns})

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("ox_worker", "--processes", processes)]

    def pending(self) -> int:
        live = "status IN ('READY', 'RUNNING')"
        return int(self.link.value(f"SELECT count(*) FROM {TABLE} WHERE {live}"))
