"""The queues as they are: what they have, who serves them, and what happened there lately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Exists, F, OuterRef, Sum

from django_perfectqueue import conf, models
from django_perfectqueue.compat import HAS_TASKS
from django_perfectqueue.fairness.limits import in_force
from django_perfectqueue.inspection.statistics import Groups, by_time, failed_groups
from django_perfectqueue.inspection.why_waiting import workers_serving
from django_perfectqueue.inspection.workers import AT_ONCE, WORKERS
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.store.claims.backlog_age import oldest_due
from django_perfectqueue.store.records import Tally
from django_perfectqueue.store.records.counts import COUNTED, LATEST, QUEUES, Counts, counts, names
from django_perfectqueue.store.records.usage import start_of
from django_perfectqueue.store.records.usage_read import COUNTED_AFTER

DRAINED = "The workers of queue '%s' are drained: see pq_status workers --undrain."
RATE_MINUTES = 5
USERS = 10

# What the queues did in each minute.
Minutes = Sequence[tuple[str, datetime, Tally]]


@dataclass(kw_only=True)
class QueueFigures:
    """
    What one queue has, and who serves it.

    ``oldest`` is the seconds that its oldest task that may start has been due for. Each status
    is that of ``Task.status``; ``parked`` are those of the scheduled that wait for a worker
    that knows their type. What waits is counted up to COUNTED + 1; with ``is_bounded`` there
    may be more of the others. It ``is_drained`` where it needs a worker and those that it has are
    drained.

    What happened a minute is of five minutes: ``finished_a_minute`` of the last five,
    ``submitted_a_minute`` and ``growth_a_minute``, by how many more tasks were submitted than
    ended, of the last five whose tasks are counted, until three minutes ago. Above some 10,000
    submits a minute these are an estimate, and without any worker, since one of them counts,
    unknown: then the growth is None.
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
    growth_a_minute: float | None = None
    workers: int = 0
    processors: int = 0
    paused: bool = False
    is_named: bool = False
    is_drained: bool = False
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

    ``failed`` is why tasks failed within a day, by group, of the LATEST newest, with the time of
    the latest. ``received`` is who received most in the last five minutes: queue, user, the
    attempts that ended, and the seconds. ``late_schedules`` were due a minute ago.
    """

    now: datetime
    queues: list[QueueFigures]
    workers: list[models.Worker]
    minutes: list[tuple[datetime, Tally]]
    failed: Groups
    received: list[tuple[str, str, int, float]]
    late_schedules: int

    @property
    def unwell(self) -> list[str]:
        """Which queues need attention."""
        return [queue.name for queue in self.queues if not queue.is_well]

    @property
    def is_well(self) -> bool:
        return not self.late_schedules and not self.unwell

    def pauses(self, *, using: str) -> dict[str, models.Limit]:
        """Return the limits that pause its queues, by the names of these."""
        paused = {f"queue:{queue.name}": queue.name for queue in self.queues if queue.paused}
        found = in_force(paused, using=using) if paused else {}
        return {paused[key]: row for key, row in found.items()}


@dataclass(frozen=True, slots=True)
class HeldByOne:
    """All ``processors`` run tasks of one ``user`` since then at least, and others wait."""

    user: str
    processors: int
    since: datetime


def held_by_one(found: Overview, *, using: str) -> HeldByOne | None:
    """
    Return which user's tasks have kept all processors from others for SHORT_TASK or longer.

    It takes one statement where all processors are busy, and else none.
    """
    busy = [(worker, state["tasks"]) for worker in found.workers for state in worker.states]
    ids = [task["id"] for _worker, tasks in busy for task in tasks]
    if not all(tasks for _worker, tasks in busy) or not 0 < len(ids) <= AT_ONCE:
        return None
    waiting = models.Ticket.objects.filter(state=models.State.WAITING, lane=OuterRef("pk"))
    others = models.Account.objects.filter(Exists(waiting), ready=True, queue=OuterRef("queue"))
    others = others.exclude(user=OuterRef("user"))
    tasks = models.Task.objects.using(using).order_by().filter(id__in=ids)
    users = set(tasks.values_list("user", Exists(others)).distinct()[: len(ids)])
    since = max(
        worker.seen_at - timedelta(seconds=task["seconds"])
        for worker, tasks in busy
        for task in tasks
    )
    short = timedelta(seconds=conf.options().SHORT_TASK)
    if len({user for user, _waits in users}) > 1 or found.now - since < short:
        return None
    return next((HeldByOne(user, len(busy), since) for user, waits in users if waits), None)


def named_queues(using: str) -> list[str]:
    """Return the queues that the settings name: DEFAULT_QUEUE, and QUEUES of the backends."""
    named = [conf.options().DEFAULT_QUEUE]
    if HAS_TASKS:
        from django_perfectqueue.backend.base import configured

        for backend in configured():
            named += backend.queue_names if backend.using == using else []
    return list(dict.fromkeys(named))


def served(workers: Iterable[models.Worker]) -> list[str]:
    return sorted({queue for worker in workers for queue in worker.queues})


def unserved(queues: Iterable[str], *, using: str) -> Iterator[str]:
    """Yield a sentence for each queue that no worker serves now, and that no setting names."""
    known = {*named_queues(using), *served(workers_serving(using=using))}
    drained = served(workers_serving(using=using, drained=True))
    for queue in sorted({*queues} - known):
        yield (
            DRAINED % queue
            if queue in drained
            else f"No worker serves queue '{queue}', and no setting names it: start one by"
            f" pq_worker --queue {queue}."
        )


def overview(
    *, using: str, over: timedelta = timedelta(hours=1), queue: str | None = None
) -> Overview:
    """
    Return up to QUEUES queues: those of the settings, those with workers, those with tasks.

    With ``queue`` it is that one alone.

    Those that are not well come first. Rates and minutes are of the time ``over``. It takes a
    dozen statements at most, each of a bounded number of rows.
    """
    known = names(using=using)
    rows = models.Worker.objects.using(using).staying(known.now)
    staying = list(rows.defer("routes_text", "schedules_text")[:WORKERS])
    workers = [worker for worker in staying if not worker.draining]
    settings = named_queues(using)
    found = list(dict.fromkeys([*settings, *served(workers), *known.queues]))[:QUEUES]
    found = found if queue is None else [queue]
    since = start_of(models.Bucket.MINUTE, known.now - over) + timedelta(minutes=1)
    minutes = minutes_of(found, since, known.now, using)
    counted = counts(found, known.now, using=using)
    oldest = oldest_due(found, using=using)
    unknown = parked_types(using)
    queues = [queue_figures(name, counted, workers, minutes, known.now) for name in found]
    for one in queues:
        one.oldest = oldest[one.name]
        one.paused = known.is_paused(one.name)
        one.is_named = one.name in settings
        one.is_drained = one.is_unserved and one.name in served(staying)
        one.unknown_types = sorted(type_ for queue, type_ in unknown if queue == one.name)
    points = [(start, tally) for _queue, start, tally in minutes]
    return Overview(
        now=known.now,
        queues=sorted(queues, key=lambda one: (one.is_well, -(one.oldest or 0.0), one.name)),
        workers=workers,
        minutes=by_time(points, since, known.now, models.Bucket.MINUTE),
        failed=failed_groups(known.now - timedelta(days=1), using=using),
        received=received(found, known.now, using),
        late_schedules=counted.late_schedules,
    )


def queue_figures(
    name: str, counted: Counts, workers: Sequence[models.Worker], minutes: Minutes, now: datetime
) -> QueueFigures:
    found = counted.by_queue.get(name, Counter())
    serving = [worker for worker in workers if name in worker.queues]
    tallies = [(start, tally) for queue, start, tally in minutes if queue == name]
    since = now - timedelta(minutes=RATE_MINUTES)
    lately = Tally.sum(tally for start, tally in tallies if start >= since)
    known = Tally.sum(tally for start, tally in tallies if since <= start + COUNTED_AFTER < now)
    ended = known.finished + known.failed + known.cancelled
    return QueueFigures(
        name=name,
        waiting=min(found["waiting"], COUNTED + 1),
        running=found["running"],
        stalled=found["stalled"],
        scheduled=found["scheduled"] + found["parked"],
        retrying=found["retrying"],
        blocked=found["blocked"],
        parked=found["parked"],
        is_bounded=counted.is_bounded,
        failed_last_hour=sum(tally.failed for _start, tally in tallies),
        finished_a_minute=lately.finished / RATE_MINUTES,
        submitted_a_minute=known.submitted / RATE_MINUTES,
        growth_a_minute=(known.submitted - ended) / RATE_MINUTES if workers else None,
        workers=len(serving),
        processors=sum(worker.processors for worker in serving),
    )


def minutes_of(queues: Sequence[str], since: datetime, until: datetime, using: str) -> Minutes:
    rows = models.Usage._default_manager.using(using).filter(
        queue__in=queues,
        span=models.Bucket.MINUTE,
        type=models.ALL_TYPES,
        start__gte=since,
        start__lt=until,
    )
    columns = ("finished", "retried", "failed", "cancelled", "submitted")
    return [
        (row["queue"], row["start"], Tally(**{name: row[name] for name in columns}))
        for row in rows.values("queue", "start", *columns)
    ]


def received(queues: Sequence[str], now: datetime, using: str) -> list[tuple[str, str, int, float]]:
    since = start_of(models.Bucket.MINUTE, now - timedelta(minutes=5))
    rows = models.Usage._default_manager.using(using).filter(
        queue__in=queues, span=models.Bucket.MINUTE, type="", others=False, start__gte=since
    )
    users = rows.values_list("queue", "user").annotate(attempts=Sum("ended"), got=Sum("seconds"))
    return list(users.order_by("-got")[:USERS])


def parked_types(using: str) -> dict[tuple[str, str], float]:
    """
    Return the queues and types for which tasks wait as no worker knows the type, and for how
    many seconds at most; of the first LATEST tasks.
    """
    tickets = models.Ticket.objects.using(using).filter(timer_at__gt=models.PARKED_FROM)
    parked = tickets.exclude(timer_at=F("run_at")).order_by("timer_at")
    columns = ("task__queue", "task__type", "run_at", "task__created_at", ServerNow())
    found: dict[tuple[str, str], float] = {}
    for queue, type_, run_at, created_at, now in parked.values_list(*columns)[:LATEST]:
        waited = (now - max(run_at, created_at)).total_seconds()
        found[queue, type_] = max(waited, found.get((queue, type_), waited))
    return found
