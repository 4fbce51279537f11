"""The figures of a queue, none of which costs more the more has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from django.db.models import Aggregate, Count, Min

from django_perfectqueue.inspection.workers import working
from django_perfectqueue.models import (
    LIVE,
    DeadLetter,
    Lane,
    Outcome,
    Status,
    Task,
    Ticket,
    live_conditions,
)
from django_perfectqueue.models.fields import ServerNow

BOUND = 10_000
CountsOfLane = dict[str, Any]
"""The tickets of a lane: its ``lane``, the ``first``, the ``oldest`` due time, counts by status."""


@dataclass
class User:
    """What one user has in one queue, and what it is entitled to."""

    user: str
    counts: Counter[str]
    working: int = 0
    weight: float = 1.0
    max_running: int | None = None
    paused: bool = False

    @property
    def running(self) -> int:
        return self.counts["running"] + self.counts["stalled"]

    @property
    def waiting(self) -> int:
        return self.counts["waiting"]


@dataclass
class Figures:
    """
    What is in one queue.

    ``working`` is how many of those that are held a handler works on, as workers reported last;
    the others were taken in advance. ``finished`` and ``dead``, by status and group, are
    counted up to BOUND: one more says that there are more. ``oldest`` is the seconds that
    the first of those that wait has been due for.
    """

    queue: str
    counts: Counter[str] = field(default_factory=Counter)
    oldest: float | None = None
    working: int = 0
    users: list[User] = field(default_factory=list)
    finished: int = 0
    dead: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def empty(self) -> bool:
        return not (self.counts.total() or self.finished or self.dead)


def figures(using: str, queue: str | None = None) -> list[Figures]:
    """Return the figures of one queue, or of each that there is."""
    found: dict[str, Figures] = {}
    if queue is not None:
        found[queue] = Figures(queue)
    add_live(found, using, queue)
    add_working(found, using)
    add_dead(found, using, queue)
    for one in found.values():
        one.users.sort(key=lambda user: (-user.running, -user.waiting, user.user))
        one.finished = finished(using, one.queue)
    return [found[name] for name in sorted(found)]


def add_live(found: dict[str, Figures], using: str, queue: str | None) -> None:
    rows = list(by_lane(using))
    lanes: dict[int, Lane] = Lane.objects.using(using).in_bulk()
    owners = owners_of(using, {row["first"] for row in rows if row["lane"] not in lanes})
    now = server_now(using)
    for name in {lane.queue for lane in lanes.values()}:
        if queue in (None, name):
            found.setdefault(name, Figures(name))
    for row in rows:
        lane = lanes.get(row["lane"]) or owners.get(row["first"])
        if lane and queue in (None, lane.queue):
            add_lane(found.setdefault(lane.queue, Figures(lane.queue)), lane, row, now)


def add_working(found: dict[str, Figures], using: str) -> None:
    """Count what handlers work on; the workers' reports may be older than the leases."""
    for (queue, user), count in working(using=using).items():
        if (one := found.get(queue)) is None:
            continue
        one.working += count
        for figures in one.users:
            if figures.user == user:
                figures.working = min(count, figures.running)
    for one in found.values():
        one.working = min(one.working, one.counts["running"] + one.counts["stalled"])


def by_lane(using: str) -> Iterable[CountsOfLane]:
    """Return the narrow table's counts: a row a lane."""
    conditions = live_conditions()
    figures: dict[str, Aggregate] = {
        word.value: Count("task_id", filter=holds) for word, holds in conditions.items()
    }
    figures |= {"first": Min("task_id"), "oldest": Min("run_at", filter=conditions[Status.WAITING])}
    rows = Ticket.objects.using(using).values("lane").annotate(**figures).order_by()
    return cast("Iterable[CountsOfLane]", rows)


def owners_of(using: str, task_ids: set[int]) -> dict[int, Lane]:
    """Return the lanes, as they will be, of tickets whose lane has yet to be made."""
    ids = sorted(task_ids)
    owners = {}
    for start in range(0, len(ids), 500):
        tasks = Task.objects.using(using).filter(id__in=ids[start : start + 500])
        for task_id, queue, user in tasks.values_list("id", "queue", "user"):
            owners[task_id] = Lane(queue=queue, user=user)
    return owners


def server_now(using: str) -> datetime | None:
    """Return the server's time, or None where there are no tasks."""
    now: datetime | None = Task.objects.using(using).values_list(ServerNow(), flat=True).first()
    return now


def add_lane(figures: Figures, lane: Lane, row: CountsOfLane, now: datetime | None) -> None:
    counts = Counter({word.value: row[word.value] for word in LIVE})
    figures.counts += counts
    user = User(
        lane.user,
        counts,
        weight=lane.weight,
        max_running=lane.max_running,
        paused=lane.paused,
    )
    figures.users.append(user)
    if row["oldest"] and now:
        wait = max(0.0, (now - row["oldest"]).total_seconds())
        figures.oldest = max(wait, figures.oldest or 0.0)


def add_dead(found: dict[str, Figures], using: str, queue: str | None) -> None:
    letters = DeadLetter.objects.using(using).order_by("-task_id")
    if queue is not None:
        letters = letters.filter(task__queue=queue)
    rows = letters.values_list("task__queue", "status", "group")[: BOUND + 1]
    for name, status, group in rows:
        found.setdefault(name, Figures(name)).dead[status, group] += 1


def finished(using: str, queue: str) -> int:
    tasks = Task.objects.using(using).filter(queue=queue, outcome=Outcome.FINISHED)
    count: int = tasks.values("id")[: BOUND + 1].count()
    return count
