"""The figures of all queues at a glance: a few statements, each of a bounded number of rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django_perfectqueue import conf, store
from django_perfectqueue.health.queues import named_queues
from django_perfectqueue.inspection.statistics import by_time
from django_perfectqueue.models import Bucket, Worker
from django_perfectqueue.store import Tally
from django_perfectqueue.store.records.counts import (
    COUNTED,
    Counts,
    Lately,
    counts,
    lately,
    names,
)
from django_perfectqueue.store.records.usage import all_types_key, start_of
from django_perfectqueue.store.records.usage_series import Point, series

WORKERS = 1_000
QUEUES = 50
RATE_MINUTES = 5


@dataclass(kw_only=True)
class QueueFigures:
    """
    What one queue has, and who serves it.

    ``oldest`` is the seconds that its oldest task that may start has been due for. ``running``
    tasks have a handler that works, ``held`` ones were taken in advance. What waits is
    counted up to COUNTED + 1; with ``is_bounded`` there may be more of the others.
    ``finished_a_minute`` is of the last five minutes.
    """

    name: str
    waiting: int = 0
    oldest: float | None = None
    running: int = 0
    held: int = 0
    stalled: int = 0
    scheduled: int = 0
    retrying: int = 0
    parked: int = 0
    is_bounded: bool = False
    failed_last_hour: int = 0
    finished_a_minute: float = 0.0
    workers: int = 0
    processors: int = 0
    paused: bool = False
    is_named: bool = False
    unknown_types: list[str] = field(default_factory=list)

    @property
    def is_unserved(self) -> bool:
        """Whether no worker serves it, though it has tasks or is in the settings."""
        has_tasks = self.waiting or self.stalled or self.retrying or self.scheduled or self.parked
        return not self.workers and bool(has_tasks or self.is_named)

    @property
    def is_late(self) -> bool:
        """Whether its oldest task has been due for longer than LATE_AFTER."""
        late = conf.options().LATE_AFTER
        return late is not None and self.oldest is not None and self.oldest > late

    @property
    def is_well(self) -> bool:
        return not (self.is_unserved or self.is_late or self.unknown_types)

    @property
    def drained_in(self) -> float | None:
        """In how many seconds what waits has finished at this rate; None where that is unknown."""
        if not self.waiting:
            return 0.0
        if not self.finished_a_minute or self.waiting > COUNTED:
            return None
        return self.waiting / self.finished_a_minute * 60


@dataclass(kw_only=True)
class Snapshot:
    """The queues as they are now, what happened lately, and the workers that take tasks."""

    now: datetime
    queues: list[QueueFigures]
    lately: Lately
    workers: list[Worker]


@dataclass(kw_only=True)
class Overview(Snapshot):
    """The same, with what all queues did in each minute of an hour."""

    minutes: list[tuple[datetime, Tally]]

    @property
    def is_well(self) -> bool:
        return not self.lately.late_schedules and all(queue.is_well for queue in self.queues)


def snapshot(*, using: str) -> Snapshot:
    """Return up to QUEUES queues: those of the settings, those with workers, those with tasks."""
    known = names(using=using)
    workers = seen(known.now, using)
    settings = named_queues(using)
    queues = list(dict.fromkeys([*settings, *served(workers), *known.queues]))[:QUEUES]
    counted = counts(queues, busy(workers), using=using)
    oldest = store.oldest_due(queues, using=using)
    recent = lately(queues, known.now, using=using)
    figures = [
        QueueFigures(
            name=queue,
            oldest=oldest[queue],
            paused=queue in known.paused,
            is_named=queue in settings,
            unknown_types=sorted(type_ for name, type_ in recent.parked if name == queue),
        )
        for queue in queues
    ]
    for one in figures:
        add_counts(one, counted)
        add_workers(one, workers)
    return Snapshot(now=known.now, queues=figures, lately=recent, workers=workers)


def overview(*, using: str) -> Overview:
    """Return the snapshot with rates; the queues that are not well come first."""
    found = snapshot(using=using)
    since = start_of(Bucket.MINUTE, found.now - timedelta(hours=1)) + timedelta(minutes=1)
    keys = [all_types_key(queue.name) for queue in found.queues]
    points = series(keys, since, found.now, unit=Bucket.MINUTE, using=using)
    for queue in found.queues:
        add_rates(queue, points, found.now)
    queues = sorted(found.queues, key=lambda one: (one.is_well, -(one.oldest or 0.0), one.name))
    return Overview(
        now=found.now,
        queues=queues,
        lately=found.lately,
        workers=found.workers,
        minutes=by_time(points, since, found.now, Bucket.MINUTE),
    )


def seen(now: datetime, using: str) -> list[Worker]:
    """Return the workers that take tasks."""
    return list(Worker.objects.using(using).serving(now).order_by("-seen_at")[:WORKERS])


def served(workers: Iterable[Worker]) -> list[str]:
    return sorted({queue for worker in workers for queue in worker.queues})


def busy(workers: Iterable[Worker]) -> set[int]:
    """Return the ids of the tasks that handlers work on, as the workers reported last."""
    return {task["id"] for one in workers for seat in one.seats for task in seat["tasks"]}


def add_counts(figures: QueueFigures, counted: Counts) -> None:
    found = counted.of(figures.name)
    figures.waiting = min(found["waiting"], COUNTED + 1)
    figures.running = found["running"]
    figures.held = max(0, found["leased"] - found["running"])
    for name in ("stalled", "scheduled", "retrying", "parked"):
        setattr(figures, name, found[name])
    figures.is_bounded = counted.is_bounded


def add_workers(figures: QueueFigures, workers: Iterable[Worker]) -> None:
    serving = [worker for worker in workers if figures.name in json.loads(worker.queues_text)]
    figures.workers = len(serving)
    figures.processors = sum(worker.processors for worker in serving)


def add_rates(figures: QueueFigures, points: Iterable[Point], now: datetime) -> None:
    since = now - timedelta(minutes=RATE_MINUTES)
    for point in points:
        if point.usage_key.queue == figures.name:
            figures.failed_last_hour += point.tally.failed
            if point.start >= since:
                figures.finished_a_minute += point.tally.finished / RATE_MINUTES
