"""The tables of django-celery-beat: what is to run once by the clock, or again and again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext as _

from .recurring import OtherwiseReadError, check_days
from .source import (
    Columns,
    Found,
    FoundSchedule,
    Left,
    Read,
    Row,
    Source,
    Table,
    call,
    columns_of,
    model_of,
)

CLOCKED = "django_celery_beat_clockedschedule"
CRONTABS = "django_celery_beat_crontabschedule"
INTERVALS = "django_celery_beat_intervalschedule"
SECONDS = {"days": 86_400.0, "hours": 3_600.0, "minutes": 60.0, "seconds": 1.0}
CLEANUP = "celery.backend_cleanup"
FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


class PeriodicTasks(Table):
    name = "django_celery_beat_periodictask"
    columns: ClassVar[Columns] = {
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
    more_columns: ClassVar[Columns] = {
        "expire_seconds": models.IntegerField(null=True),
        "headers": models.TextField(null=True),
        "one_off": models.BooleanField(),
        "last_run_at": models.DateTimeField(null=True),
    }

    def others(self, table: str, columns: Columns) -> Row:
        """Return the rows of a table that this one refers to."""
        columns_of(table, self.terms.using)
        model = model_of(table, {"id": models.IntegerField(primary_key=True), **columns})
        return model._default_manager.using(self.terms.using)

    def open(self) -> None:
        super().open()
        self.clocked = self.others(CLOCKED, {"clocked_time": models.DateTimeField()})
        texts: Columns = {name: models.CharField(max_length=240) for name in (*FIELDS, "timezone")}
        self.crontabs = self.others(CRONTABS, texts)
        interval: Columns = {
            "every": models.IntegerField(),
            "period": models.CharField(max_length=24),
        }
        self.intervals = self.others(INTERVALS, interval)

    def wanted(self, rows: Row) -> Row:
        rows = rows.filter(queue=self.terms.queue) if self.terms.queue else rows
        return rows.filter(enabled=True)

    def passed_over(self) -> Iterator[tuple[str, int]]:
        yield _("switched off"), self.rows.filter(enabled=False).count()

    def read(self, row: Row) -> Read:
        if row.task == CLEANUP:
            return Left(row.name, _("of Celery's own: RETENTION_TIME does it here"), fixable=False)
        if row.solar_id is not None:
            name = f"{row.name}: {row.task}"
            return Left(name, _("by the sun: not possible here"), fixable=False, listed=True)
        once = row.clocked_id is not None or getattr(row, "one_off", False)
        if once and row.total_run_count:
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
        data = call(args, kwargs)
        return self.clocked_task(row, data) if row.clocked_id else self.schedule(row, data)

    def schedule(self, row: Row, data: dict[str, object]) -> FoundSchedule | Left:
        try:
            timing = self.timing(row)
        except OtherwiseReadError as error:
            return Left(row.name, _("that would come at other times here"), str(error))
        if not timing:
            return Left(row.name, _("with a time that can't be found"))
        terms = {
            **timing,
            "ends_at": row.expires,
            "expires_after": getattr(row, "expire_seconds", None),
            **({} if row.priority is None else {"priority": row.priority}),
            "remaining": 1 if getattr(row, "one_off", False) else None,
            "overlap": "allow",
        }
        return FoundSchedule(row.id, row.name, row.task, data, terms, row.queue or None)

    def timing(self, row: Row) -> dict[str, object]:
        """Return when a schedule comes; nothing where that is not in its table."""
        if (crontab := self.crontabs.filter(pk=row.crontab_id).first()) is not None:
            fields = ["".join(getattr(crontab, name).split()) for name in FIELDS]
            cron = check_days(" ".join(fields), both=True)
            return {"cron": cron, "timezone": crontab.timezone, "starts_at": row.start_time}
        if (interval := self.intervals.filter(pk=row.interval_id).first()) is not None:
            seconds = interval.every * SECONDS.get(interval.period, 1e-6)
            last = getattr(row, "last_run_at", None)
            starts_at = max(filter(None, (row.start_time, last)), default=None)
            return {"every": seconds, "starts_at": starts_at}
        return {}

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
        return Found(row.id, task, row.queue or None)


class CeleryBeat(Source):
    name = "celery-beat"
    kinds = (PeriodicTasks,)
    takes = frozenset({"queue"})
