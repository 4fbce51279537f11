"""Read usage, put minutes together to hours, and count what was submitted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from itertools import groupby
from operator import attrgetter, or_
from typing import Any, NamedTuple, TypeAlias

from django.db.models import Count, F, Max, Q, QuerySet, Sum
from django.db.models.functions import TruncMinute

from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.models import ALL_TYPES, Bucket, Task, TaskQuerySet, Usage

from ..arithmetic.entitlement import Contender, entitlements
from ..arithmetic.fair_order import lane_id
from ..database.transaction import Session, in_transaction, reading, retry_transaction, with_retries
from ..values import Now
from . import usage

USERS, ALL_MINUTES = Q(type=""), Q(span=Bucket.MINUTE, type__gte="")
STANDINGS = """
SELECT "own"."id", "lane"."id", "own"."weight", "own"."max_running", "own"."running"
FROM "perfectqueue_account" AS "own"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."account" = "own"."id"
WHERE "own"."id" IN ({lanes})
"""
COUNT = """
SELECT {id}, COUNT(*) FROM (
    SELECT 1 FROM "perfectqueue_ticket" WHERE "state" = 0 AND "lane" = {id} LIMIT %(most)s
) AS "line"
"""


# Under which a user competed: the weight and the cap of its lane.
Terms: TypeAlias = "tuple[float, int | None]"
# What was submitted, by minute.
Submits: TypeAlias = "defaultdict[datetime, defaultdict[usage.UsageKey, usage.Tally]]"
# Weight, cap, running and waiting tasks by their names.
Standing: TypeAlias = "dict[str, Any]"


class UserMinute(NamedTuple):
    """What a user, or the others, got in a minute, and whether it is known to have wanted more."""

    start: datetime
    others: bool
    user: str
    seconds: float
    entitled: float
    eager: int
    held: int


def received(
    db: Session, queue: str, since: datetime, until: datetime, of: Q
) -> dict[usage.UsageKey, usage.Tally]:
    """
    Return what everyone got since, and before; of users what they were entitled to, too.

    Older than an hour are whole hours.
    """
    rows = within(queue, since, until, using=db.using).filter(of)
    found = {
        usage.UsageKey(queue, others, user, type_): tally
        for (others, user, type_), tally in sums(rows, "others", "user", "type")
    }
    for usage_key, seconds in entitled(db, queue, since, until):
        # What was written since the sums were read is left out.
        if usage_key in found:
            found[usage_key].entitled += seconds
    return found


def within(queue: str, since: datetime, until: datetime, *, using: str) -> QuerySet[Usage]:
    """Return the minutes and hours of a queue within a time."""
    rows = Usage._default_manager.using(using).filter(queue=queue, start__gte=since)
    return rows.filter(span__in=(Bucket.MINUTE, Bucket.HOUR), start__lt=until)


def sums(rows: QuerySet[Usage], *by: str) -> Iterator[tuple[Sequence[Any], usage.Tally]]:
    """Yield the sums of usage by these columns."""
    amounts = {f"sum_{one}": (Max if one == "longest" else Sum)(one) for one in usage.AMOUNTS}
    for row in rows.order_by().values_list(*by).annotate(**amounts):
        yield row[: len(by)], usage.Tally.of(row[len(by) :])


def entitled(
    db: Session, queue: str, since: datetime, until: datetime
) -> Iterator[tuple[usage.UsageKey, float]]:
    """Yield what users were entitled to in each minute that has not been folded."""
    minutes = within(queue, since, until, using=db.using).filter(USERS)
    found = minutes.filter(span=Bucket.MINUTE).order_by("start")
    columns = ("start", "others", "user", "seconds", "entitled", "eager", F("paused") + F("capped"))
    rows = [UserMinute(*row) for row in found.values_list(*columns)]
    owners = {lane_id(queue, row.user): row.user for row in rows if not row.others}
    # One that has no lane has the terms of anyone.
    standing = db.rows_of(STANDINGS, "lanes", sorted(owners))
    terms = {owners[row[0]]: (row[2], row[3]) for row in standing}
    for _start, some in groupby(rows, key=attrgetter("start")):
        minute = list(some)
        if not any(one.entitled for one in minute):
            for one, seconds in entitle(minute, terms).items():
                yield usage.UsageKey(queue, bool(one.others), one.user), seconds


def series(
    usage_key: usage.UsageKey, since: datetime, until: datetime, *, using: str
) -> list[tuple[datetime, usage.Tally]]:
    """Return what a type or a user got by time: in minutes, and in hours what is older."""
    rows = within(usage_key.queue, since, until, using=using)
    own = rows.filter(type=usage_key.type, others=usage_key.others, user=usage_key.user)
    return [(start, tally) for (start,), tally in sums(own, "start")]


def totals(queues: Collection[str], *, most: int, using: str) -> dict[usage.UsageKey, usage.Tally]:
    """Return what all types of these queues got since ever, and that of the oldest types."""
    found = Usage._default_manager.using(using).filter(queue__in=queues, span=Bucket.TOTAL)
    rows = found.order_by("-others", "pk").values_list("queue", "type", "others", *usage.AMOUNTS)
    return {
        usage.UsageKey(queue, bool(others), "", type_): usage.Tally.of(amounts)
        for queue, type_, others, *amounts in rows[:most]
    }


def entitle(minute: Sequence[UserMinute], terms: Mapping[str, Terms]) -> dict[UserMinute, float]:
    """
    Return what each was entitled to within one minute.

    Who was paused or at its cap for a moment is taken to have wanted no more, and so are
    those who are summed up as others. Where more waited than were looked at, everyone else who
    got something is taken to have waited for more.
    """
    many = any(one.others and one.eager for one in minute)
    found, contenders = {}, {}
    for one in minute:
        if one.others:
            found[one] = one.seconds
            continue
        weight, cap = terms.get(one.user, (1.0, None))
        most = math.inf if cap is None else float(cap * Bucket.MINUTE)
        eager = not one.held and bool(one.eager or (many and one.seconds > 0))
        contenders[one] = Contender(one.seconds, weight, eager, most)
    return found | entitlements(contenders)


def standings(db: Session, queue: str, users: Iterable[str], most: int) -> dict[str, Standing]:
    """
    Return of each user that has a lane what holds for it now: weight and cap, what runs and
    what waits, of which no more than ``most`` and one are counted in each of its lanes.
    """
    owners = {lane_id(queue, user): user for user in users}
    found: dict[str, Standing] = {}
    lanes: dict[int, str] = {}
    rows = db.rows_of(STANDINGS, "lanes", sorted(owners))
    for account, lane, weight, max_running, running in rows:
        lanes[account] = lanes[lane or account] = user = owners[account]
        terms = {"weight": weight, "max_running": max_running, "running": running}
        found[user] = {"waiting": 0, **terms}
    for lane, count in db.of_each(COUNT, sorted(lanes), {"most": most + 1}):
        facts = found[lanes[lane]]
        facts["waiting"] = min(facts["waiting"] + count, most + 1)
    return found


# Count what is submitted, put minutes of usage together to hours, and delete what is old.


GRACE = timedelta(seconds=15)
LATELY = timedelta(minutes=6)
MINUTES_KEPT = timedelta(minutes=62)
AT_ONCE = timedelta(minutes=10)
BATCH = 10_000
COUNTED, PARTS = 10_000, 10
# So long after a minute began its tasks are counted: a minute after they were seen first. Those
# that are counted later still are counted in a minute that was so long ago.
COUNTED_AFTER, COUNTED_LATE = timedelta(minutes=3) + GRACE, timedelta(minutes=10)

# Its total is the id of the newest task that has been counted.
COUNTED_KEY = usage.all_types_key("")
COUNTED_UNTIL = """
SELECT {now}, COALESCE((SELECT MAX("id") FROM "perfectqueue_task"), 0), COALESCE((
    SELECT "submitted" FROM "perfectqueue_usage" WHERE "queue" = '' AND "span" = 0
), 0)
"""
OLDEST_TASK = 'SELECT MIN("id") FROM "perfectqueue_task"'


@retry_transaction
def count_submitted(upto: int, *, using: str, now: Now = None) -> int:
    """
    Count by queue the tasks stored with an id up to this one and not counted yet, each in the
    minute of its submit; return the newest id.

    Submits pay nothing for it. ``upto`` is what the caller got from it a minute ago, so that
    transactions open then have ended, and their tasks are counted, too. Several hosts may do so
    at once: the total of COUNTED_KEY is locked, and says how far it has been done. Beyond
    COUNTED ids it is an estimate, from some of them. Tasks that were purged meanwhile are not
    counted.
    """
    with reading(using, now=now) as db:
        _moment, newest, counted = db.execute(COUNTED_UNTIL).fetchone()
    if counted >= upto:
        return int(newest)
    with in_transaction(using, now=now) as db:
        lock(db)
        moment, newest, counted = db.execute(COUNTED_UNTIL).fetchone()
        if counted < upto:
            # The first time what was purged before is no part of it.
            [oldest] = db.execute(OLDEST_TASK).fetchone() if not counted else [0]
            after = min(upto, max(counted, (oldest or 0) - 1))
            since = usage.start_of(Bucket.MINUTE, db.dialect.moment(moment) - COUNTED_LATE)
            found = stored(db, after, upto, since)
            found[usage.EPOCH][COUNTED_KEY].submitted = upto - counted
            for start, tallies in sorted(found.items(), reverse=True):
                span = Bucket.MINUTE if start > usage.EPOCH else Bucket.TOTAL
                usage.write(db, span, start, tallies)
    return int(newest)


def stored(db: Session, after: int, until: int, since: datetime) -> Submits:
    """
    Return how many tasks of each queue have an id above the one and up to the other, by the start
    of the minute in which they were submitted, or where that is earlier ``since``; and at EPOCH of
    all of them.

    Of more than COUNTED ids PARTS of them, evenly apart, stand for all.
    """
    length = until - after
    parts, size = (PARTS, COUNTED // PARTS) if length > COUNTED else (1, length)
    ends = [until - length * number // parts for number in range(parts)]
    some = reduce(or_, [Q(pk__gt=end - size, pk__lte=end) for end in ends])
    minute = TruncMinute("created_at", tzinfo=db.cursor.db.timezone)
    rows = TaskQuerySet(Task, using=db.using).filter(some).order_by()
    found: Submits = defaultdict(lambda: defaultdict(usage.Tally))
    for queue, start, part in rows.values_list("queue", minute).annotate(Count("pk")):
        count = round(part * length / (size * parts))
        found[max(start, since)][usage.all_types_key(queue)].submitted += count
        found[usage.EPOCH][usage.all_types_key(queue)].submitted += count
    return found


def roll_up(*, using: str, keep: float | None, now: Now = None) -> None:
    """
    Move minutes to their hours, some at a time, and delete old hours.

    Minutes stay for an hour, and of each no more than MOST_ROWS users; hours stay for ``keep``
    seconds; None is for ever. Totals stay. Several hosts may do so at once.
    """
    moment = usage.clock(using=using, now=now)
    rows = Usage._default_manager.using(using)
    for queue in distinct(rows.filter(span__gt=Bucket.TOTAL), "queue", limit=None):
        own = rows.filter(queue=queue)
        for start in crowded(own, moment, using=using):
            merge_minutes(queue, Bucket.MINUTE, start, start + timedelta(minutes=1), using=using)
        oldest = oldest_minute(own, using=using)
        if oldest is not None:
            start = usage.start_of(int(AT_ONCE.total_seconds()), oldest)
            if start + AT_ONCE <= moment - MINUTES_KEPT:
                merge_minutes(queue, Bucket.HOUR, start, start + AT_ONCE, using=using)
        if keep is not None:
            hours = own.filter(span=Bucket.HOUR, start__lt=moment - timedelta(seconds=keep))
            for old in (hours.filter(type=""), hours.filter(type__gt="")):
                delete_batch(old.order_by("type", "start")[:BATCH], using=using)
        types = own.filter(span=Bucket.TOTAL, others=False).order_by("pk")
        delete_batch(types[usage.MOST_TYPES : usage.MOST_TYPES + BATCH], using=using)


def crowded(rows: QuerySet[Usage], now: datetime, *, using: str) -> list[datetime]:
    """Return the minutes that were over lately and have too many users."""
    lately = rows.filter(
        start__gte=now - LATELY, start__lt=usage.start_of(Bucket.MINUTE, now - GRACE)
    )
    minutes = lately.filter(span=Bucket.MINUTE, type="").values("start").annotate(rows=Count("pk"))
    starts = minutes.filter(rows__gt=usage.MOST_ROWS + 1).values_list("start", flat=True)
    return with_retries(lambda: list(starts), using=using)


def oldest_minute(rows: QuerySet[Usage], *, using: str) -> datetime | None:
    """Return the oldest minute; every type has a row of all types beside it."""
    starts = rows.filter(span=Bucket.MINUTE).order_by("start").values_list("start", flat=True)
    # Each of these is one step in the index.
    found = [with_retries(starts.filter(type=of).first, using=using) for of in ("", ALL_TYPES)]
    return min(filter(None, found), default=None)


@retry_transaction
def merge_minutes(
    queue: str, span: Bucket, since: datetime, until: datetime, *, using: str
) -> None:
    """
    Move minutes to the span that they are in, with what users were entitled to.

    Of users those keep a row that received most. The minutes were over a while ago, so that
    nobody adds to them while they are read and deleted.
    """
    with in_transaction(using) as db:
        lock(db)
        found = received(db, queue, since, until, ALL_MINUTES)
        rows = within(queue, since, until, using=using).filter(ALL_MINUTES)
        if ids := list(rows.values_list("pk", flat=True)):
            db.dialect.delete(db.cursor, usage.TABLE, ids)
            usage.write(db, span, usage.start_of(span, since), usage.folded(found, usage.MOST_ROWS))


def lock(db: Session) -> None:
    """Have others wait that count or move: what one has done the next one sees."""
    usage.write(db, Bucket.TOTAL, usage.EPOCH, {COUNTED_KEY: usage.Tally()})


@retry_transaction
def delete_batch(rows: QuerySet[Usage], *, using: str) -> None:
    """Delete these rows. Those that someone holds are left."""
    with in_transaction(using) as db:
        found = rows.select_for_update(skip_locked=True).values_list("pk", flat=True)
        if ids := list(found):
            db.dialect.delete(db.cursor, usage.TABLE, ids)
