"""Count what is submitted, put minutes of usage together to hours, and delete what is old."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from itertools import pairwise

from django.db.models import Count, QuerySet

from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.models import ALL_TYPES, Bucket, Usage

from ..database.session import Session
from ..database.transaction import in_transaction, reading, retry_transaction, with_retries
from .usage import (
    EPOCH,
    MOST_ROWS,
    MOST_TYPES,
    TABLE,
    Tally,
    UsageKey,
    all_types_key,
    clock,
    folded,
    start_of,
    write,
)
from .usage_read import ALL_MINUTES, PLACE, place, received

GRACE = timedelta(seconds=15)
LATELY = timedelta(minutes=6)
MINUTES_KEPT = timedelta(minutes=62)
AT_ONCE = timedelta(minutes=10)
BATCH = 10_000
COUNTED = 10_000
PIECES = 10

COUNTED_KEY = all_types_key("")
"""Its total is the id of the newest task that has been counted."""
COUNTED_UNTIL = """
SELECT {now}, COALESCE((SELECT MAX("id") FROM "perfectqueue_task"), 0), COALESCE((
    SELECT "submitted" FROM "perfectqueue_usage" WHERE "queue" = '' AND "span" = 0
), 0)
"""
OLDEST_TASK = 'SELECT MIN("id") FROM "perfectqueue_task"'
STORED = """
SELECT "queue" FROM "perfectqueue_task" WHERE "id" > {after} AND "id" <= {until}
"""
MINUTES = f'SELECT "id" {PLACE.replace("{of}", ALL_MINUTES)}'


@retry_transaction
def count_submitted(upto: int, *, using: str, now: datetime | None = None) -> int:
    """
    Count by queue the tasks stored with an id up to this one and not counted yet; return the
    newest id.

    Submits pay nothing for it. ``upto`` is what the caller got from it a minute ago, so that
    transactions open then have ended, and their tasks are counted, too. Several hosts may do so
    at once: the total of COUNTED_KEY is locked, and says how far it has been done. Beyond
    COUNTED ids it is an estimate, from some of them. Tasks that were purged meanwhile are not
    counted.
    """
    with reading(using) as db:
        _moment, newest, counted = db.execute(COUNTED_UNTIL, now=now).fetchone()
    if counted >= upto:
        return int(newest)
    with in_transaction(using) as db:
        lock(db)
        moment, newest, counted = db.execute(COUNTED_UNTIL, now=now).fetchone()
        if counted < upto:
            # The first time what was purged before is no part of it.
            [oldest] = db.execute(OLDEST_TASK).fetchone() if not counted else [0]
            found = stored(db, min(upto, max(counted, (oldest or 0) - 1)), upto)
            write(db, Bucket.MINUTE, start_of(Bucket.MINUTE, db.dialect.moment(moment)), found)
            found[COUNTED_KEY] = Tally(submitted=upto - counted)
            write(db, Bucket.TOTAL, EPOCH, found)
    return int(newest)


def stored(db: Session, after: int, until: int) -> dict[UsageKey, Tally]:
    """
    Return how many tasks of each queue have an id above the one and up to the other.

    Of more than COUNTED ids a random piece of each of PIECES parts is counted.
    """
    length = until - after
    bounds = [after + length * number // PIECES for number in range(PIECES + 1)]
    pieces = []
    for first, last in pairwise(bounds):
        size = min(last - first, COUNTED // PIECES)
        begin = random.randint(first, last - size)  # noqa: S311
        pieces.append((begin, begin + size))
    whole = length / max(1, sum(last - first for first, last in pieces))
    parts = [STORED.replace("{after}", str(a)).replace("{until}", str(b)) for a, b in pieces]
    ids = " UNION ALL ".join(parts)
    rows = db.rows(f'SELECT "queue", COUNT(*) FROM ({ids}) AS "stored" GROUP BY "queue"')
    return {all_types_key(queue): Tally(submitted=round(count * whole)) for queue, count in rows}


def roll_up(*, using: str, keep: float | None, now: datetime | None = None) -> None:
    """
    Move minutes to their hours, some at a time, and delete old hours.

    Minutes stay for an hour, and of each no more than MOST_ROWS users; hours stay for ``keep``
    seconds; None is for ever. Totals stay. Several hosts may do so at once.
    """
    moment = clock(using=using, now=now)
    rows = Usage._default_manager.using(using)
    for queue in distinct(rows.filter(span__gt=Bucket.TOTAL), "queue", limit=None):
        own = rows.filter(queue=queue)
        for start in crowded(own, moment, using=using):
            merge_minutes(queue, Bucket.MINUTE, start, start + timedelta(minutes=1), using=using)
        oldest = oldest_minute(own, using=using)
        if oldest is not None:
            start = start_of(int(AT_ONCE.total_seconds()), oldest)
            if start + AT_ONCE <= moment - MINUTES_KEPT:
                merge_minutes(queue, Bucket.HOUR, start, start + AT_ONCE, using=using)
        if keep is not None:
            hours = own.filter(span=Bucket.HOUR, start__lt=moment - timedelta(seconds=keep))
            for old in (hours.filter(type=""), hours.filter(type__gt="")):
                delete_batch(old.order_by("type", "start")[:BATCH], using=using)
        types = own.filter(span=Bucket.TOTAL, others=False).order_by("pk")
        delete_batch(types[MOST_TYPES : MOST_TYPES + BATCH], using=using)


def crowded(rows: QuerySet[Usage], now: datetime, *, using: str) -> list[datetime]:
    """Return the minutes that were over lately and have too many users."""
    lately = rows.filter(start__gte=now - LATELY, start__lt=start_of(Bucket.MINUTE, now - GRACE))
    minutes = lately.filter(span=Bucket.MINUTE, type="").values("start").annotate(rows=Count("pk"))
    starts = minutes.filter(rows__gt=MOST_ROWS + 1).values_list("start", flat=True)
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
        if ids := [row for (row,) in db.rows(MINUTES, place(db, queue, since, until))]:
            db.dialect.delete(db.cursor, TABLE, ids)
            write(db, span, start_of(span, since), folded(found, MOST_ROWS))


def lock(db: Session) -> None:
    """Have others wait that count or move: what one has done the next one sees."""
    write(db, Bucket.TOTAL, EPOCH, {COUNTED_KEY: Tally()})


@retry_transaction
def delete_batch(rows: QuerySet[Usage], *, using: str) -> None:
    """Delete these rows. Those that someone holds are left."""
    with in_transaction(using) as db:
        found = rows.select_for_update(skip_locked=True).values_list("pk", flat=True)
        if ids := list(found):
            db.dialect.delete(db.cursor, TABLE, ids)
