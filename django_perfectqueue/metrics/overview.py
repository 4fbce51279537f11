"""The figures of all queues at a glance: a few statements, each of a bounded number of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django_perfectqueue import conf, store
from django_perfectqueue.health.queues import named_queues
from django_perfectqueue.inspection.statistics import by_time
from django_perfectqueue.models import Bucket, Worker
from django_perfectqueue.store import Tally
from django_perfectqueue.store.records.counts import COUNTED, Figures, figures, names
from django_perfectqueue.store.records.usage import start_of

WORKERS = 1_000
QUEUES = 50
RATE_MINUTES = 5


@dataclass(kw_only=True)
class QueueFigures:
    """
    What one queue has, and who serves it.

    ``oldest`` is the seconds that its oldest task that may start has been due for. Each status
    is that of ``Task.status``; ``parked`` are those of the scheduled that wait for a worker
    that knows their type. What waits is counted up to COUNTED + 1; with ``is_bounded`` there
    may be more of the others.

    What happened a minute is of the last five: ``finished_a_minute``, ``submitted_a_minute``,
    and ``growth_a_minute``, by how many more tasks were submitted than ended. The latter two are
    a minute or two old, and above some 10,000 submits a minute an estimate.
    """

    name: str
    waiting: int = 0
    oldest: float | None = None
    running: int = 0
    stalled: int = 0
    scheduled: int = 0
    retrying: int = 0
    blocked: int = 0
    parked: int = 0
    is_bounded: bool = False
    failed_last_hour: int = 0
    finished_a_minute: float = 0.0
    submitted_a_minute: float = 0.0
    growth_a_minute: float = 0.0
    workers: int = 0
    processors: int = 0
    paused: bool = False
    is_named: bool = False
    unknown_types: list[str] = field(default_factory=list)

    @property
    def is_unserved(self) -> bool:
        """Whether no worker serves it, though it has tasks or is in the settings."""
        has_tasks = any((self.waiting, self.stalled, self.retrying, self.scheduled, self.blocked))
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
        if not self.waiting and not self.blocked:
            return 0.0
        if not self.workers or not self.finished_a_minute or self.waiting > COUNTED:
            return None
        return self.waiting / self.finished_a_minute * 60


@dataclass(kw_only=True)
class Overview:
    """
    The queues as they are now, what happened lately, the workers that take tasks, and what all
    queues did in each minute.
    """

    now: datetime
    queues: list[QueueFigures]
    lately: Figures
    workers: list[Worker]
    minutes: list[tuple[datetime, Tally]]

    @property
    def unwell(self) -> list[str]:
        """Which queues need attention."""
        return [queue.name for queue in self.queues if not queue.is_well]

    @property
    def is_well(self) -> bool:
        return not self.lately.late_schedules and not self.unwell


def overview(
    *, using: str, over: timedelta = timedelta(hours=1), queue: str | None = None
) -> Overview:
    """
    Return up to QUEUES queues: those of the settings, those with workers, those with tasks.

    With ``queue`` it is that one alone.

    Those that are not well come first. Rates and minutes are of the time ``over``. It takes three
    statements, and one more where the first tasks have limits.
    """
    known = names(using=using, workers=WORKERS)
    settings = named_queues(using)
    found = list(dict.fromkeys([*settings, *served(known.workers), *known.queues]))[:QUEUES]
    found = found if queue is None else [queue]
    since = start_of(Bucket.MINUTE, known.now - over) + timedelta(minutes=1)
    lately = figures(found, known.now, since, using=using)
    oldest = store.oldest_due(found, using=using, gates=lately.gates)
    queues = [
        QueueFigures(
            name=queue,
            oldest=oldest[queue],
            paused=queue in known.paused,
            is_named=queue in settings,
            unknown_types=sorted(type_ for name, type_ in lately.parked if name == queue),
        )
        for queue in found
    ]
    for one in queues:
        add_counts(one, lately)
        add_workers(one, known.workers)
        add_rates(one, lately.points, known.now)
    points = [(start, tally) for _queue, start, tally in lately.points]
    return Overview(
        now=known.now,
        queues=sorted(queues, key=lambda one: (one.is_well, -(one.oldest or 0.0), one.name)),
        lately=lately,
        workers=known.workers,
        minutes=by_time(points, since, known.now, Bucket.MINUTE),
    )


def served(workers: Iterable[Worker]) -> list[str]:
    return sorted({queue for worker in workers for queue in worker.queues})


def add_counts(one: QueueFigures, counted: Figures) -> None:
    found = counted.of(one.name)
    one.waiting = min(found["waiting"], COUNTED + 1)
    for name in ("running", "stalled", "retrying", "blocked", "parked"):
        setattr(one, name, found[name])
    one.scheduled = found["scheduled"] + found["parked"]
    one.is_bounded = counted.is_bounded


def add_workers(one: QueueFigures, workers: Iterable[Worker]) -> None:
    serving = [worker for worker in workers if one.name in worker.queues]
    one.workers = len(serving)
    one.processors = sum(worker.processors for worker in serving)


def add_rates(
    one: QueueFigures, points: Iterable[tuple[str, datetime, Tally]], now: datetime
) -> None:
    since = now - timedelta(minutes=RATE_MINUTES)
    for queue, start, tally in points:
        if queue == one.name:
            one.failed_last_hour += tally.failed
            if start >= since:
                ended = tally.finished + tally.failed + tally.cancelled
                one.finished_a_minute += tally.finished / RATE_MINUTES
                one.submitted_a_minute += tally.submitted / RATE_MINUTES
                one.growth_a_minute += (tally.submitted - ended) / RATE_MINUTES
