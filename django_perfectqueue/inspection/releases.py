"""What the newest release of the site has changed: failures that are new, types that got worse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, Q

from django_perfectqueue import store
from django_perfectqueue.models import Bucket, DeadLetter, Outcome, Worker
from django_perfectqueue.store.records import Tally

from .statistics import Groups, Statistics, failed_groups, made, types_of, within
from .why_waiting import WORKERS

HOUR = timedelta(hours=1)
LONGEST = timedelta(days=1)
GROUPS = 20
# A type is worse from so many bad attempts, or attempts before and after, and so much more on.
BAD, ATTEMPTS, WORSE = 3, 10, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release of the site: since when workers of it run, and which queues they serve."""

    name: str
    began: datetime
    queues: frozenset[str]


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


def newest_release(*, using: str) -> Release | None:
    """Return the release that began last, of the workers that live; None where none names one."""
    rows = Worker.objects.using(using).seen(store.records.clock(using=using))
    return newest_of(rows.order_by("-seen_at")[:WORKERS])


def newest_of(workers: Iterable[Worker]) -> Release | None:
    began: dict[str, datetime] = {}
    queues: set[str] = set()
    for worker in workers:
        queues |= {*worker.queues}
        if worker.release:
            first = began.get(worker.release, worker.started_at)
            began[worker.release] = min(first, worker.started_at)
    if not began:
        return None
    name = max(began, key=lambda release: began[release])
    return Release(name=name, began=began[name], queues=frozenset(queues))


def since_release(release: Release, *, using: str) -> SinceRelease:
    """Compare what has happened since a release, up to a day, with the hour before it."""
    began = release.began
    whole_hours = Q(span=Bucket.HOUR, start__gte=began - 2 * HOUR, start__lte=began - HOUR)
    minutes = Q(span=Bucket.MINUTE, start__gte=began - HOUR, start__lt=began)
    was = types_of(release.queues, whole_hours | minutes, using=using)
    changes = [
        TypeChange(before=was.get(key) or made(key, Tally()), after=one)
        for key, one in types_of(
            release.queues, within(began, began + LONGEST), using=using
        ).items()
    ]
    return SinceRelease(
        groups=new_groups(began, using=using),
        types=[change for change in changes if change.fails_more or change.takes_longer],
    )


def new_groups(since: datetime, *, using: str) -> Groups:
    """Return the GROUPS largest groups of failures that are new since then."""
    found = failed_groups(since, using=using)
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
