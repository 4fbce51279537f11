"""How a schedule is shown, to people and to programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.timezone import localtime

from django_perfectqueue.inspection.schedules import in_words, standing
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.models import Schedule, Task
from django_perfectqueue.schedules.terms import CHECKS

from .facts import content, iso


def shown(moment: datetime | None) -> str:
    return localtime(moment).isoformat(" ", "seconds") if moment else "-"


def tick_of(task: Task) -> str:
    """Return the tick that the key of a task names."""
    return task.key.rpartition("@")[2]


def fields(row: Schedule) -> Iterator[tuple[str, str]]:
    """Yield what there is to be said of a schedule, without its ticks."""
    yield "state", row.state
    yield "why", standing(row, timezone.now())
    for name, show in FIELDS.items():
        value = getattr(row, name)
        if value or (value is None and name == "catch_up"):
            yield verbose(name), show(value)
        if name == "type":
            yield "when", in_words(row)


def text(value: object) -> str:
    return str(value)


def verbose(name: str) -> str:
    field: Any = Schedule._meta.get_field(name)
    return str(field.verbose_name)


FIELDS: dict[str, Callable[[Any], str]] = {
    "problem": text,
    "paused_by": text,
    "note": text,
    "type": text,
    "cron": text,
    "queue": text,
    "user": text,
    "limits": lambda limits: str(limits.replace(",", ", ")),
    "priority": text,
    "time_limit": short_duration,
    "expires_after": short_duration,
    "starts_at": shown,
    "ends_at": shown,
    "remaining": text,
    "delay": short_duration,
    "jitter": short_duration,
    "overlap": text,
    "catch_up": lambda most: "all" if most is None else str(most),
    "deadline": short_duration,
    "pause_after": text,
    "last_at": shown,
    "fired": text,
    "skipped_overlap": text,
    "skipped_late": text,
    "failures": text,
}
"""What is shown where it is set, in this order."""


def for_programs(row: Schedule, status: str = "") -> dict[str, object]:
    """Return what is known of a schedule, without its data; times are in ISO 8601."""
    plain = ("name", "state", "origin", "type", *CHECKS, "paused", "note", "paused_by", "problem")
    times = ("next_at", "due_at", "last_at")
    numbers = ("fired", "skipped_overlap", "skipped_late", "failures", "pending")
    facts = {name: getattr(row, name) for name in (*plain, *times, *numbers)}
    facts["limits"] = row.limits.split(",") if row.limits else []
    facts |= {name: iso(facts[name]) for name in (*times, "starts_at", "ends_at")}
    return facts | {
        "when": in_words(row),
        "why": standing(row, timezone.now()),
        "last_status": status or None,
    }


def data_of(row: Schedule) -> dict[str, object]:
    return content("data", row.payload)
