"""The tables of django-celery-beat: what is to run once, at a time by the clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

from django.db import models
from django.utils.translation import gettext as _

from .source import Columns, Found, Left, Row, Source, Table, call, columns_of, model_of

CLOCKED = "django_celery_beat_clockedschedule"
KINDS = ("crontab", "interval", "solar")


class PeriodicTasks(Table):
    name = "django_celery_beat_periodictask"

    def columns(self) -> Columns:
        columns_of(CLOCKED, self.terms.using)
        clocked = model_of(
            CLOCKED,
            {
                "id": models.IntegerField(primary_key=True),
                "clocked_time": models.DateTimeField(),
            },
        )
        self.clocked = clocked._default_manager.using(self.terms.using)
        return {
            "id": models.IntegerField(primary_key=True),
            "name": models.CharField(max_length=200),
            "task": models.CharField(max_length=200),
            "args": models.TextField(),
            "kwargs": models.TextField(),
            "queue": models.CharField(max_length=200, null=True),
            "priority": models.IntegerField(null=True),
            "expires": models.DateTimeField(null=True),
            "start_time": models.DateTimeField(null=True),
            "enabled": models.BooleanField(),
            "total_run_count": models.IntegerField(),
            "clocked_id": models.IntegerField(null=True),
            "crontab_id": models.IntegerField(null=True),
            "interval_id": models.IntegerField(null=True),
            "solar_id": models.IntegerField(null=True),
        }

    def more_columns(self) -> Columns:
        return {
            "expire_seconds": models.IntegerField(null=True),
            "headers": models.TextField(null=True),
        }

    def wanted(self, rows: Row) -> Row:
        rows = rows.filter(queue=self.terms.queue) if self.terms.queue else rows
        return rows.filter(enabled=True)

    def passed_over(self) -> Iterator[tuple[str, int]]:
        yield _("switched off"), self.rows.filter(enabled=False).count()

    def read(self, row: Row) -> Found | Left:
        if row.clocked_id is None:
            kind = next((kind for kind in KINDS if getattr(row, f"{kind}_id") is not None), "")
            why = _("recurring: there is no scheduler yet")
            name = f"{row.name}: {row.task}"
            return Left(name, why, kind, fixable=False, listed=True)
        if row.total_run_count:
            return Left(row.name, _("that have run"), fixable=False)
        try:
            args, kwargs = json.loads(row.args or "[]"), json.loads(row.kwargs or "{}")
            headers = json.loads(getattr(row, "headers", None) or "{}")
        except (ValueError, RecursionError) as error:
            return Left(row.name, _("with data that can't be read"), str(error))
        if not (isinstance(args, list) and isinstance(kwargs, dict)):
            detail = _("args is no list, or kwargs no dict")
            return Left(row.name, _("with data that can't be read"), detail)
        if headers:
            return Left(row.name, _("with what a task here has not: %s") % "headers")
        return self.clocked_task(row, call(args, kwargs))

    def clocked_task(self, row: Row, data: dict[str, object]) -> Found | Left:
        clocked: Row = self.clocked.filter(pk=row.clocked_id).first()
        if clocked is None:
            return Left(row.name, _("with a time that is not in the table '%s'") % CLOCKED)
        due = max(filter(None, (clocked.clocked_time, row.start_time)))
        expires = row.expires
        if expires is None and (seconds := getattr(row, "expire_seconds", None)):
            expires = due + timedelta(seconds=seconds)
        task = {
            "key": f"celery-beat-{row.id}",
            "type": row.task,
            "data": data,
            "run_at": due,
            "expires_at": expires,
            "priority": row.priority or 0,
        }
        return Found(row.id, task)


class CeleryBeat(Source):
    name = "celery-beat"
    kinds = (PeriodicTasks,)
    takes = frozenset({"queue"})
