"""django-tasks-db: ``manage.py db_worker``, connections kept."""

from __future__ import annotations

from typing import Any

from .base import NOW, TOMORROW, DjangoPeer, manage

TABLE = "django_tasks_database_dbtaskresult"


class DjangoTasksDb(DjangoPeer):
    packages = ("django-tasks-db",)
    backlogs = ("waiting", "scheduled", "finished")
    apps = ("django_tasks_db",)
    size = 0.3

    def settings(self, processes: int) -> dict[str, Any]:
        return {"TASKS": {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}}

    def prepare(self) -> None:
        super().prepare()
        from benchmarks.workers.django_tasks import noop

        self.noop = noop

    def submit(self, index: int) -> None:
        self.noop.enqueue(index)

    def stock(self, kind: str, count: int) -> None:
        where = self.target.kind
        self.submit(0)
        columns = {
            "waiting": {},
            "scheduled": {"run_after": TOMORROW[where]},
            "finished": {
                "status": "'SUCCESSFUL'",
                "started_at": NOW[where],
                "finished_at": NOW[where],
            },
        }[kind]
        self.copy(TABLE, count, {"id": self.uuid(), **columns})

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("db_worker")] * processes

    def pending(self) -> int:
        live = "status IN ('READY', 'RUNNING')"
        return int(self.link.value(f"SELECT count(*) FROM {TABLE} WHERE {live}"))
