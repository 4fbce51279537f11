"""How attempts ended within some time and how long they took; what a release has changed of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, time, timedelta, timezone
from itertools import groupby
from typing import NamedTuple

from django.db.models import Exists, Q

from django_perfectqueue import store
from django_perfectqueue.lib import durations
from django_perfectqueue.models import Bucket, Change, DeadLetter, Outcome, Usage
from django_perfectqueue.store.arithmetic.entitlement import BOUNDS, percentile
from django_perfectqueue.store.records import Tally, UsageKey
from django_perfectqueue.store.records.counts import LATEST, names
from django_perfectqueue.store.records.usage import ENDINGS, MOST_TYPES, key_for, start_of, type_key
from django_perfectqueue.store.records.usage_read import series, sums

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

    ``day`` is None where they are of another time. An attempt is counted when it has ended:
    ``lost`` where its process died or another had its task.
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
    usage_key, since = key_for(queue, type, user), datetime.combine(day, time(), timezone.utc)
    points = series(usage_key, since, since + timedelta(days=1), using=using)
    tally = Tally.sum(tally for _start, tally in points)
    return made(usage_key, tally, day=day)


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
    points = series(usage_key, since, until, using=using)
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
    found = {type_key(*names): tally for names, tally in sums(rows, "queue", "type")}
    return {key: made(key, tally) for key, tally in found.items() if tally.ended}


def failed_groups(since: datetime, until: datetime = durations.LATEST, *, using: str) -> Groups:
    """Return why tasks failed between two times, by group, of the LATEST newest."""
    letters = DeadLetter.objects.using(using).filter(status=Outcome.FAILED)
    letters = letters.filter(ended_at__gt=since, ended_at__lt=until)
    newest = letters.order_by("-ended_at").values_list("group", "ended_at")[:LATEST]
    rows = list(reversed(newest))
    number = Counter(group for group, _at in rows)
    return {group: (number[group], at) for group, at in rows}


def by_time(
    points: Iterable[tuple[datetime, Tally]], since: datetime, until: datetime, unit: int
) -> list[tuple[datetime, Tally]]:
    """Add up points by spans of this length, those without anything too."""
    found: dict[datetime, list[Tally]] = {}
    start = since
    while start < until:
        found[start] = []
        start += timedelta(seconds=unit)
    for at, tally in points:
        if (some := found.get(start_of(unit, at))) is not None:
            some.append(tally)
    return [(start, Tally.sum(some)) for start, some in found.items()]


def made(usage_key: UsageKey, tally: Tally, *, day: date | None = None) -> Statistics:
    is_type = bool(usage_key.type) and not usage_key.others
    return Statistics(
        queue=usage_key.queue,
        day=day,
        type=usage_key.type if is_type else "",
        user=None if usage_key.type else usage_key.user,
        **{name: getattr(tally, name) for name in ("ended", *ENDINGS)},
        run=Distribution.of(tally.lasted, tally.squares, tally.runs),
        wait=Distribution.of(tally.waited, tally.wait_squares, tally.waits),
    )


HOUR = timedelta(hours=1)
LONGEST = timedelta(days=1)
GROUPS, RELEASES = 20, 5
# A type is worse from so many bad attempts, or attempts before and after, and so much more on.
BAD, ATTEMPTS, WORSE = 3, 10, 1.5


class Release(NamedTuple):
    """A release of the site: when a worker of it was first seen, and one of the next release."""

    id: int
    name: str
    after: Mapping[str, Sequence[str]] | None
    began: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeChange:
    """How a type fared in the hour before a release, and since."""

    before: Statistics
    after: Statistics

    @property
    def sides(self) -> tuple[Statistics, Statistics]:
        return self.before, self.after

    @property
    def fails_more(self) -> bool:
        """Whether a larger part of its attempts ended in an error or a crash."""
        more = bad_part(self.after) > WORSE * bad_part(self.before)
        return self.after.bad >= BAD and more

    @property
    def takes_longer(self) -> bool:
        enough = min(self.before.run.count, self.after.run.count) >= ATTEMPTS
        return enough and (self.after.run.mean or 0.0) > WORSE * (self.before.run.mean or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinceRelease:
    """
    What is new since a release: ``groups`` of failures, of which none that is stored is older,
    each with its number and the time of the latest; and ``types`` that fail more or take longer.
    """

    groups: Groups
    types: list[TypeChange]


def releases(*, using: str) -> list[Release]:
    """Return the RELEASES that came last, the newest first; of equal records the first counts."""
    rows = Change.objects.using(using).filter(kind=Change.Kind.RELEASE).order_by("-pk")
    known = rows.values_list("pk", "name", "after", "at")[: 10 * RELEASES]
    # Workers that start at once may each leave one.
    found = [[*some][-1] for _name, some in groupby(known, key=lambda row: row[1])][:RELEASES]
    ends = [durations.LATEST, *(began for *_others, began in found)]
    return [Release(*one, until) for one, until in zip(found, ends, strict=False)]


def since_release(release: Release, *, using: str) -> SinceRelease:
    """Compare what has happened since a release, up to a day, with the hour before it."""
    began, until = release.began, release.until
    queues = {*names(using=using).queues, *(release.after or {}).get("queues", ())}
    whole_hours = Q(span=Bucket.HOUR, start__gte=began - 2 * HOUR, start__lte=began - HOUR)
    minutes = Q(span=Bucket.MINUTE, start__gte=began - HOUR, start__lt=began)
    was = types_of(queues, whole_hours | minutes, using=using)
    found = types_of(queues, within(began, min(until, began + LONGEST)), using=using)
    changes = [
        TypeChange(before=was.get(key) or made(key, Tally()), after=one)
        for key, one in found.items()
    ]
    return SinceRelease(
        groups=new_groups(began, until, using=using),
        types=[change for change in changes if change.fails_more or change.takes_longer],
    )


def new_groups(since: datetime, until: datetime, *, using: str) -> Groups:
    """Return the GROUPS largest groups of failures that are new between two times."""
    found = failed_groups(since, until, using=using)
    largest = sorted(found, key=lambda group: -found[group][0])[:GROUPS]
    older = DeadLetter.objects.using(using).filter(ended_at__lt=since)
    # Each is one look-up in an index, and all of them are one statement.
    looks = {
        f"known_{number}": Exists(older.filter(group=group)) for number, group in enumerate(largest)
    }
    if not looks:
        return {}
    failed = DeadLetter.objects.using(using).filter(status=Outcome.FAILED, ended_at__gte=since)
    rows = failed.order_by().annotate(**looks).values_list(*looks)[:1]
    known = next(iter(rows), [False] * len(looks))
    return {
        group: found[group] for group, is_known in zip(largest, known, strict=True) if not is_known
    }


def bad_part(found: Statistics) -> float:
    return found.bad / found.ended if found.ended else 0.0
