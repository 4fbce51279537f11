"""The table of django-ox's schedules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext as _

from django_perfectqueue.store.arithmetic.ticks import EPOCH

from .recurring import OtherwiseReadError, check_days
from .source import Columns, FoundSchedule, Left, Row, Source, Table, call


class OxSchedules(Table):
    name = "django_ox_oxschedule"

    columns: ClassVar[Columns] = {
        "id": models.BigIntegerField(primary_key=True),
        "name": models.CharField(max_length=128),
        "task_key": models.CharField(max_length=128),
        "cron": models.CharField(max_length=128),
        "every_seconds": models.PositiveIntegerField(null=True),
        "phase_seconds": models.PositiveIntegerField(),
        "arguments": models.JSONField(),
        "enabled": models.BooleanField(),
        "start_time": models.DateTimeField(),
        "end_time": models.DateTimeField(null=True),
        "starting_deadline_seconds": models.PositiveIntegerField(null=True),
    }

    def wanted(self, rows: Row) -> Row:
        return rows.filter(enabled=True)

    def passed_over(self) -> Iterator[tuple[str, int]]:
        yield _("switched off"), self.rows.filter(enabled=False).count()

    def read(self, row: Row) -> FoundSchedule | Left:
        if not isinstance(row.arguments, dict):
            return Left(row.name, _("with data that can't be read"), _("arguments is no dict"))
        try:
            cron = check_days(row.cron, both=False)
        except OtherwiseReadError as error:
            return Left(row.name, _("that would come at other times here"), str(error))
        terms = {
            "cron": cron,
            "every": row.every_seconds,
            "starts_at": row.start_time if cron else first_tick(row),
            "ends_at": row.end_time,
            "deadline": row.starting_deadline_seconds,
            "overlap": "allow",
        }
        return FoundSchedule(row.id, row.name, row.task_key, call([], row.arguments), terms)


def first_tick(row: Row) -> datetime:
    """Return the first tick of an interval, which is counted from 1970 and its phase."""
    anchor = EPOCH + timedelta(seconds=row.phase_seconds)
    step = timedelta(seconds=max(1, row.every_seconds or 1))
    count = -((anchor - row.start_time) // step)
    first: datetime = anchor + count * step
    return first


class DjangoOx(Source):
    name = "django-ox"
    kinds = (OxSchedules,)
