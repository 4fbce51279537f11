"""The table of dj-queue's recurring tasks."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext as _

from .recurring import OtherwiseReadError, check_days, without_zone
from .source import Columns, FoundSchedule, Left, Row, Source, Table, call


class RecurringTasks(Table):
    name = "dj_queue_recurring_tasks"

    columns: ClassVar[Columns] = {
        "id": models.BigIntegerField(primary_key=True),
        "key": models.CharField(max_length=255),
        "task_path": models.CharField(max_length=255),
        "payload": models.JSONField(null=True),
        "schedule": models.CharField(max_length=255),
        "queue_name": models.CharField(max_length=64),
        "priority": models.SmallIntegerField(),
    }

    def wanted(self, rows: Row) -> Row:
        return rows.filter(queue_name=self.terms.queue) if self.terms.queue else rows

    def read(self, row: Row) -> FoundSchedule | Left:
        cron, zone = without_zone(row.schedule)
        cron = "0 12 * * *" if cron == "@noon" else cron
        if not cron.startswith("@") and len(cron.split()) not in (5, 6):
            return Left(row.key, _("with a time in words: write it as cron"), row.schedule)
        payload = row.payload or {}
        try:
            data = call(payload.get("args", []), payload.get("kwargs", {}))
            cron = check_days(cron, both=False)
        except OtherwiseReadError as error:
            return Left(row.key, _("that would come at other times here"), str(error))
        except (AttributeError, TypeError) as error:
            return Left(row.key, _("with data that can't be read"), str(error))
        terms = {"cron": cron, "timezone": zone, "priority": row.priority, "overlap": "allow"}
        return FoundSchedule(row.id, row.key, row.task_path, data, terms, row.queue_name)


class DjQueue(Source):
    name = "dj_queue"
    kinds = (RecurringTasks,)
    takes = frozenset({"queue"})
