"""django-q2: ``manage.py qcluster`` with the broker in the database, as its manual shows it."""

from __future__ import annotations

from typing import Any

from .base import DjangoPeer, manage

MANUAL = {"name": "benchmark", "timeout": 90, "retry": 120, "queue_limit": 50, "bulk": 10}


class DjangoQ2(DjangoPeer):
    packages = ("django-q2",)
    apps = ("django.contrib.contenttypes", "django.contrib.auth", "django_q")
    table = "django_q_ormq"
    size = 0.2

    def settings(self, processes: int) -> dict[str, Any]:
        return {"Q_CLUSTER": {**MANUAL, "workers": processes, "orm": "default"}}

    def prepare(self) -> None:
        import logging

        super().prepare()
        from django_q.tasks import async_task

        logging.getLogger("django-q").setLevel(logging.WARNING)
        self.async_task = async_task

    def submit(self, index: int) -> None:
        self.async_task("benchmarks.probe.note", index)

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("qcluster")]
