"""Schedules as people see them: when in words, what is wrong, which task is whose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q
from django.utils.translation import gettext as _

from django_perfectqueue import store
from django_perfectqueue.exceptions import PerfectQueueError
from django_perfectqueue.lib.durations import long_duration, short_duration
from django_perfectqueue.models import Schedule, Task, TaskQuerySet
from django_perfectqueue.payload.codecs import part
from django_perfectqueue.payload.context import OF_SCHEDULES
from django_perfectqueue.store.schedules import BROKEN_FOR, timing_of

# A schedule that is due for longer is late: no worker fires it.
LATE = timedelta(seconds=60)
MOST = 100


@dataclass(frozen=True, slots=True)
class TaskOrigin:
    """Which schedule has submitted a task, and for which of its ticks."""

    schedule: str
    tick: datetime

    def __str__(self) -> str:
        return self.schedule

    def facts(self) -> dict[str, str]:
        """Return it for programs."""
        return {"name": self.schedule, "tick": self.tick.isoformat()}


def origin_of(task: Task) -> TaskOrigin | None:
    """Return the schedule of a task, or None where none has submitted it."""
    schedule, tick = (part(task.context, name) for name in OF_SCHEDULES)
    try:
        return TaskOrigin(str(schedule), datetime.fromisoformat(tick))
    except (TypeError, ValueError):
        return None


def in_words(row: Schedule) -> str:
    """Return when it comes: cron in words where cronsim is installed, else as it is."""
    if row.every:
        return _("every %s") % short_duration(row.every)
    try:
        words = timing_of(row).explain()
    except PerfectQueueError:
        words = row.cron
    return f"{words} ({row.timezone or settings.TIME_ZONE})"


def standing(row: Schedule, now: datetime) -> str:
    """Return why it submits nothing now, or when it will, in a sentence."""
    words = {"note": row.note, "by": row.paused_by, "problem": row.problem}
    if row.origin == Schedule.Origin.GONE:
        return _("No live worker declares it.")
    if row.problem:
        return _("It is broken: %(problem)s") % words
    if row.paused and row.paused_by:
        return (_("It is paused by %(by)s: %(note)s") % words).rstrip(": ")
    if row.paused:
        return (_("It is paused: %(note)s") % words).rstrip(": ")
    if row.due_at is None:
        return _("It has ended.")
    if row.pending:
        return _("Its tick waits for the end of the previous task.")
    wait = (row.due_at - now).total_seconds()
    word = _("It is due in %s.") if wait > 0 else _("It has been due for %s.")
    return word % long_duration(abs(wait))


def with_statuses(rows: list[Schedule], *, using: str) -> list[Schedule]:
    """Return schedules with the status of the last task of each."""
    ids = [row.last_task_id for row in rows if row.last_task_id]
    tasks = TaskQuerySet(Task, using=using).with_status()
    found: dict[int, str] = {}
    for start in range(0, len(ids), 500):
        found |= {task.pk: task.status for task in tasks.filter(pk__in=ids[start : start + 500])}
    for row in rows:
        row.last_status = found.get(row.last_task_id or 0)
    return rows


def problems_of(*, using: str) -> Iterator[tuple[Schedule, str]]:
    """
    Yield the schedules that are broken or late, with what is wrong in a sentence.

    A broken one is looked at again within BROKEN_FOR, so the index of ``due_at`` finds it.
    """
    now = store.records.clock(using=using)
    broken = Q(due_at__lte=now + BROKEN_FOR) & ~Q(problem="")
    rows = Schedule.objects.using(using).filter(broken | Q(due_at__lt=now - LATE))
    for row in rows.order_by("due_at")[:MOST]:
        late = long_duration((now - row.due_at).total_seconds()) if row.due_at else ""
        what = f"late: it has been due for {late}."
        if row.problem:
            what = f"broken: {row.problem}"
        yield row, f"Schedule '{row.name}' is {what}"
