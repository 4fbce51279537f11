"""How many attempts ended in which way within some time, and how long they took."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, time, timedelta, timezone

from django.db.models import Max, Q, Sum

from django_perfectqueue import store
from django_perfectqueue.models import Bucket, DeadLetter, Outcome, Usage
from django_perfectqueue.store.arithmetic.entitlement import BOUNDS, percentile
from django_perfectqueue.store.database.transaction import reading
from django_perfectqueue.store.records import Tally, UsageKey
from django_perfectqueue.store.records.counts import LATEST
from django_perfectqueue.store.records.usage import (
    AMOUNTS,
    MOST_TYPES,
    all_types_key,
    start_of,
    type_key,
)
from django_perfectqueue.store.records.usage_read import series, totals

COUNTED = 10_000
# Of each group of failures its number, and the time of the latest.
Groups = dict[str, tuple[int, datetime]]
WINDOWS = {
    "hour": (timedelta(hours=1), int(Bucket.MINUTE)),
    "day": (timedelta(days=1), int(Bucket.HOUR)),
    "month": (timedelta(days=30), 24 * int(Bucket.HOUR)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """
    Lengths of time in seconds: how many, their mean and standard deviation, and a histogram.

    ``histogram`` has the upper bound and the count of each bucket; the last bound is infinity.
    ``p50`` and ``p95`` are what half and 95 % of them reached at most. Without any, all but
    the ``count`` are None.
    """

    count: int
    mean: float | None
    deviation: float | None
    p50: float | None
    p95: float | None
    histogram: list[tuple[float, int]]

    @classmethod
    def of(cls, total: float, squares: float, buckets: Sequence[int]) -> Distribution:
        count = sum(buckets)
        mean = total / count if count else None
        # The difference of two sums may come out below 0 where all lengths are alike.
        # No length is above the root of the sum of their squares.
        longest = math.sqrt(squares)
        spread = None if mean is None else max(0.0, squares / count - mean * mean)
        return cls(
            count=count,
            mean=mean,
            deviation=None if spread is None else math.sqrt(spread),
            p50=percentile(buckets, 0.5, longest),
            p95=percentile(buckets, 0.95, longest),
            histogram=[*zip((*BOUNDS, math.inf), buckets, strict=True)],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """
    How the attempts of a queue, or of one type or user in it, ended, and how long they took.

    ``day`` is None where they are since ever. An attempt is counted when it has ended:
    ``lost`` where its process died or another had its task. ``still_failed`` is how many tasks
    failed that day and were not put back since, among its 10,000 newest failures; None for all
    time.
    """

    queue: str
    day: date | None = None
    type: str = ""
    user: str | None = None
    ended: int = 0
    finished: int = 0
    retried: int = 0
    failed: int = 0
    cancelled: int = 0
    lost: int = 0
    still_failed: int | None = None
    run: Distribution
    wait: Distribution

    @property
    def bad(self) -> int:
        """How many attempts ended in an error or a crash."""
        return self.retried + self.failed + self.lost

    def facts(self) -> dict[str, object]:
        """Return it for programs; the bound of the last bucket is None."""
        facts = asdict(self) | {"day": self.day and self.day.isoformat()}
        for name in ("run", "wait"):
            histogram = getattr(self, name).histogram
            bounded = [[None if math.isinf(end) else end, count] for end, count in histogram]
            facts[name]["histogram"] = bounded
        return facts


def statistics(
    queue: str,
    day: date | None = None,
    *,
    using: str,
    type: str | None = None,  # noqa: A002
    user: str | None = None,
    now: datetime | None = None,
) -> Statistics:
    """
    Return the statistics of a day in UTC, by default of today.

    Raise ValueError where both a type and a user are given.
    """
    if type is not None and user is not None:
        raise ValueError("Give a type or a user, not both.")
    day = day or store.records.clock(using=using, now=now).date()
    usage_key = all_types_key(queue) if type is None else type_key(queue, type)
    if user is not None:
        usage_key = UsageKey(queue, others=False, user=user)
    with reading(using) as db:
        points = series(db, usage_key, *span_of(day))
    tally = Tally.sum(tally for _start, tally in points)
    return made(usage_key, tally, day=day, still_failed=still_failed(usage_key, day, using=using))


def by_type(queue: str, day: date | None, *, using: str) -> list[Statistics]:
    """Return the statistics of a day, by default of today: of all types, then of each that ran."""
    day = day or store.records.clock(using=using).date()
    whole = statistics(queue, day, using=using)
    types = types_of([queue], within(*span_of(day)), using=using)
    return [whole, *(replace(one, day=day) for _key, one in sorted(types.items()))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """
    The last hour, day or month of a queue, a type or a user: in minutes, hours or days.

    ``types`` are those of a whole queue.
    """

    total: Statistics
    points: list[tuple[datetime, Tally]]
    types: list[Statistics]


def period(usage_key: UsageKey, over: str, *, using: str) -> Period:
    """Return what it got over one of WINDOWS. Raise KeyError for another."""
    length, unit = WINDOWS[over]
    until = store.records.clock(using=using)
    since = start_of(unit, until - length) + timedelta(seconds=unit)
    with reading(using) as db:
        points = series(db, usage_key, since, until)
    whole = [usage_key.queue] if usage_key.others else []
    types = types_of(whole, within(since, until), using=using).values()
    return Period(
        total=made(usage_key, Tally.sum(tally for _start, tally in points)),
        points=by_time(points, since, until, unit),
        types=sorted(types, key=lambda one: -one.ended)[:MOST_TYPES],
    )


def within(since: datetime, until: datetime) -> Q:
    """Return the condition of the minutes, and of the hours of what is older, between two times."""
    spans = (Bucket.MINUTE, Bucket.HOUR)
    return Q(span__in=spans, start__gte=since, start__lt=until)


def types_of(queues: Collection[str], spans: Q, *, using: str) -> dict[UsageKey, Statistics]:
    """Return the statistics of each type in these queues, of the spans for which this holds."""
    rows = Usage._default_manager.using(using).filter(
        spans, queue__in=queues, type__gt="", others=False
    )
    sums = {f"sum_{name}": (Max if name == "longest" else Sum)(name) for name in AMOUNTS}
    found = {
        UsageKey(queue, others=False, user="", type=type_): Tally.of(amounts)
        for queue, type_, *amounts in rows.values_list("queue", "type").annotate(**sums)
    }
    return {key: made(key, tally) for key, tally in found.items() if tally.ended}


def failed_groups(since: datetime, *, using: str) -> Groups:
    """Return why tasks failed since then, by group, of the LATEST newest."""
    letters = DeadLetter.objects.using(using).filter(status=Outcome.FAILED, ended_at__gt=since)
    newest = letters.order_by("-ended_at").values_list("group", "ended_at")[:LATEST]
    rows = list(reversed(newest))
    number = Counter(group for group, _at in rows)
    return {group: (number[group], at) for group, at in rows}


def by_time(
    points: Iterable[tuple[datetime, Tally]], since: datetime, until: datetime, unit: int
) -> list[tuple[datetime, Tally]]:
    """Add up points by spans of this length, those without anything too."""
    found: dict[datetime, Tally] = {}
    start = since
    while start < until:
        found[start] = Tally()
        start += timedelta(seconds=unit)
    for at, tally in points:
        if total := found.get(start_of(unit, at)):
            total.add(tally)
    return list(found.items())


def still_failed(usage_key: UsageKey, day: date, *, using: str) -> int:
    """Return how many tasks failed on a day and were not put back, of the COUNTED newest."""
    since, until = span_of(day)
    failed = DeadLetter.objects.using(using).filter(
        status=Outcome.FAILED, ended_at__gte=since, ended_at__lt=until
    )
    names = failed.order_by("-ended_at").values_list("task__queue", "task__type", "task__user")
    return sum(
        queue == usage_key.queue
        and (type_ == usage_key.type or (usage_key.others or not usage_key.type))
        and (usage_key.type != "" or user == usage_key.user)
        for queue, type_, user in names[:COUNTED]
    )


def lifetime(queue: str, *, using: str) -> list[Statistics]:
    """
    Return the statistics since ever: first of all types, then of each, up to MOST_TYPES.

    A type beyond these is only in the sum.
    """
    found = totals([queue], most=MOST_TYPES + 1, using=using)
    everything = all_types_key(queue)
    rest = sorted(found.keys() - {everything})
    return [made(key, found.get(key, Tally())) for key in (everything, *rest)]


def made(
    usage_key: UsageKey, tally: Tally, *, day: date | None = None, still_failed: int | None = None
) -> Statistics:
    is_type = bool(usage_key.type) and not usage_key.others
    return Statistics(
        queue=usage_key.queue,
        day=day,
        type=usage_key.type if is_type else "",
        user=None if usage_key.type else usage_key.user,
        ended=tally.ended,
        finished=tally.finished,
        retried=tally.retried,
        failed=tally.failed,
        cancelled=tally.cancelled,
        lost=tally.lost,
        still_failed=still_failed,
        run=Distribution.of(tally.lasted, tally.squares, tally.runs),
        wait=Distribution.of(tally.waited, tally.wait_squares, tally.waits),
    )


def span_of(day: date) -> tuple[datetime, datetime]:
    since = datetime.combine(day, time(), timezone.utc)
    return since, since + timedelta(days=1)
