"""procrastinate: its Django application, ``manage.py procrastinate worker``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .base import TOMORROW, DjangoPeer, manage

TABLE = "procrastinate_jobs"


class Procrastinate(DjangoPeer):
    databases = ("postgresql",)
    packages = ("procrastinate", "psycopg")
    metrics = ("submit", "bulk", "drain", "snapshot", "latency", "counts")
    backlogs = ("waiting", "scheduled", "finished")
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

    def stock(self, kind: str, count: int) -> None:
        self.submit(0)
        columns = {
            "waiting": {},
            "scheduled": {"scheduled_at": TOMORROW["postgresql"]},
            "finished": {"status": "'succeeded'::procrastinate_job_status", "attempts": "1"},
        }[kind]
        self.copy(TABLE, count, columns)
        self.link.run(f"DELETE FROM {TABLE} WHERE id = (SELECT min(id) FROM {TABLE})")

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("procrastinate", "worker")] * processes

    def pending(self) -> int:
        live = "status IN ('todo', 'doing')"
        return int(self.link.value(f"SELECT count(*) FROM {TABLE} WHERE {live}"))
