"""dj_queue: ``manage.py dj_queue``, processes as asked, three threads each, connections kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .base import NOW, DjangoPeer, manage


class DjQueue(DjangoPeer):
    packages = ("dj-queue",)
    metrics = ("submit", "bulk", "drain", "snapshot", "latency", "counts")
    backlogs = ("waiting", "finished")
    apps = ("dj_queue",)
    size = 0.3

    def settings(self, processes: int) -> dict[str, Any]:
        options = {"workers": [{"processes": processes}]}
        backend = {
            "BACKEND": "dj_queue.backend.DjQueueBackend",
            "QUEUES": [],
            "OPTIONS": options,
        }
        return {"TASKS": {"default": backend}}

    def prepare(self) -> None:
        super().prepare()
        from dj_queue.models import Job, ReadyExecution

        from benchmarks.workers.django_tasks import noop

        self.noop = noop
        self.jobs, self.ready = Job._meta.db_table, ReadyExecution._meta.db_table

    def submit(self, index: int) -> None:
        self.noop.enqueue(index)

    def submit_many(self, indexes: Iterable[int]) -> None:
        backend: Any = self.noop.get_backend()
        backend.enqueue_all([(self.noop, [index], {}) for index in indexes])

    def stock(self, kind: str, count: int) -> None:
        self.submit(0)
        id_ = self.uuid()
        job = {"id": id_}
        if kind == "finished":
            job["finished_at"] = NOW[self.target.kind]
        self.copy(self.jobs, count, job)
        if kind == "waiting":
            self.copy(self.ready, count, {"job_id": id_})

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("dj_queue")]

    def pending(self) -> int:
        sql = f"SELECT count(*) FROM {self.jobs} WHERE finished_at IS NULL"
        return int(self.link.value(sql))
