"""How a schedule is shown, to people and to programs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.timezone import localtime

from django_perfectqueue.inspection.schedules import in_words, standing
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.models import Schedule, Task
from django_perfectqueue.schedules.terms import CHECKS

from .facts import content, iso

SPANS = ("time_limit", "expires_after", "delay", "jitter", "deadline")
# What is shown where it is set, in this order.
SHOWN = (
    *("problem", "paused_by", "note", "type", "cron", "queue", "user", "limits", "priority"),
    *("time_limit", "expires_after", "starts_at", "ends_at", "remaining", "delay", "jitter"),
    *("overlap", "catch_up", "deadline", "pause_after", "last_at"),
    *("fired", "skipped_overlap", "skipped_late", "failures"),
)


def shown(moment: datetime | None) -> str:
    return localtime(moment).isoformat(" ", "seconds") if moment else "-"


def tick_of(task: Task) -> str:
    """Return the tick that the key of a task names."""
    return task.key.rpartition("@")[2]


def fields(row: Schedule) -> Iterator[tuple[str, str]]:
    """Yield what there is to be said of a schedule, without its ticks."""
    yield "state", row.state
    yield "why", standing(row, timezone.now())
    for name in SHOWN:
        value = getattr(row, name)
        if value or (value is None and name == "catch_up"):
            field: Any = Schedule._meta.get_field(name)
            yield str(field.verbose_name), in_text(name, value)
        if name == "type":
            yield "when", in_words(row)


def in_text(name: str, value: Any) -> str:
    if name in SPANS:
        return short_duration(value)
    if isinstance(value, datetime):
        return shown(value)
    if value is None:
        return "all"
    return str(value).replace(",", ", ") if name == "limits" else str(value)


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
