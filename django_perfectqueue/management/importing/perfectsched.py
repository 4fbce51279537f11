"""The table of PerfectSched, the scheduler beside PerfectQueue for Ruby."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext as _

from .perfectqueue import UNREADABLE, unpacked
from .recurring import OtherwiseReadError, check_days
from .source import Columns, FoundSchedule, Left, Row, Source, Table, Terms


class Schedules(Table):
    """A schedule runs one tick after another, also those that were missed."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.name = terms.table or "perfectsched"

    columns: ClassVar[Columns] = {
        "id": models.CharField(max_length=256, primary_key=True),
        "cron": models.CharField(max_length=128),
        "delay": models.IntegerField(),
        "data": models.BinaryField(),
        "timezone": models.CharField(max_length=256, null=True),
    }

    def read(self, row: Row) -> FoundSchedule | Left:
        try:
            data = unpacked(row.data)
            # Releases join days of the month and of the week in different ways.
            cron = check_days(check_days(row.cron, both=True), both=False)
        except OtherwiseReadError as error:
            return Left(row.id, _("that would come at other times here"), str(error))
        except UNREADABLE as error:
            return Left(row.id, _("with data that can't be read"), str(error))
        type_ = str(data.pop("type", None) or row.id.partition(".")[0])
        terms = {
            "cron": cron,
            "timezone": row.timezone or "UTC",
            "delay": row.delay or 0,
            "catch_up": None,
            "overlap": "queue",
        }
        return FoundSchedule(row.id, row.id, type_, data, terms)


class PerfectSched(Source):
    name = "perfectsched"
    kinds = (Schedules,)
    takes = frozenset({"table"})
