"""procrastinate: its Django application, ``manage.py procrastinate worker``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .base import DjangoPeer, manage


class Procrastinate(DjangoPeer):
    databases = ("postgresql",)
    packages = ("procrastinate", "psycopg")
    metrics = ("submit", "bulk", "drain", "snapshot", "latency", "counts")
    table = "procrastinate_jobs"
    rows = {
        "waiting": {},
        "scheduled": {"scheduled_at": "{tomorrow}"},
        "finished": {"status": "'succeeded'::procrastinate_job_status", "attempts": "1"},
    }
    live = "status IN ('todo', 'doing')"
    apps = ("procrastinate.contrib.django",)
    size = 0.3

    def settings(self, processes: int) -> dict[str, Any]:
        return {"PROCRASTINATE_IMPORT_PATHS": ["benchmarks.workers.procrastinate"]}

    def prepare(self) -> None:
        super().prepare()
        from benchmarks.workers.procrastinate import noop

        self.noop = noop

    def submit(self, index: int) -> None:
        self.noop.defer(i=index)

    def submit_many(self, indexes: Iterable[int]) -> None:
        self.noop.batch_defer(*({"i": index} for index in indexes))

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("procrastinate", "worker")] * processes
