"""Sum slices of usage up to minutes, hours and days; delete what is too old."""

from __future__ import annotations

from datetime import datetime, timedelta

from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.models import Bucket, Usage

from ..database.transaction import in_transaction, retry_transaction
from .usage import (
    EPOCH,
    LATEST,
    MOST_ROWS,
    MOST_TYPES,
    clock,
    folded,
    start_of,
    write,
)
from .usage_read import EVERYTHING, TYPES, USERS, first_since, slices, summed_until, sums

GRACE = 15.0
SPANS_A_ROUND = 100
BATCH = 1_000
BATCHES = 10
SLICES_KEPT, MINUTES_KEPT = 300.0, 3 * 3_600.0
LONG_AGO = timedelta(days=3_650)

OLD = """
SELECT "id" FROM "perfectqueue_usage"
WHERE "queue" = %(queue)s AND "span" = %(span)s AND {of} AND "start" < %(before)s
ORDER BY "type", "start" LIMIT %(limit)s
"""
SURPLUS = """
SELECT "id" FROM "perfectqueue_usage" WHERE "queue" = %(queue)s AND "span" = 0 AND "others" = FALSE
ORDER BY "id" LIMIT %(limit)s OFFSET %(most)s
"""
DELETE = 'DELETE FROM "perfectqueue_usage" WHERE "id" IN ({ids})'


def roll_up(*, using: str, keep: float | None, now: datetime | None = None) -> None:
    """
    Sum up every minute, hour and day that has passed, and delete what has been summed up.

    Slices are kept for five minutes, minutes for three hours, hours and days for ``keep``
    seconds; None is for ever. Totals stay. Sums are computed anew and not added to, so however
    many do this at the same time, it comes to the same.
    """
    moment = clock(using=using, now=now)
    summed = Usage._default_manager.using(using).filter(span__gt=Bucket.TOTAL)
    for queue in distinct(summed, "queue", limit=None):
        if sum_up(queue, Bucket.MINUTE, Bucket.SLICE, using=using, now=moment):
            delete(queue, Bucket.SLICE, SLICES_KEPT, using=using, now=moment)
            if sum_up(queue, Bucket.HOUR, Bucket.MINUTE, using=using, now=moment):
                delete(queue, Bucket.MINUTE, MINUTES_KEPT, using=using, now=moment)
                roll_up_days(queue, using=using, keep=keep, now=moment)


def roll_up_days(queue: str, *, using: str, keep: float | None, now: datetime) -> None:
    """Sum up days, and delete what is older than ``keep``; a shorter one has no whole day."""
    if keep is None or keep > int(Bucket.DAY):
        sum_up(queue, Bucket.DAY, Bucket.HOUR, using=using, now=now)
    if keep is not None:
        delete(queue, Bucket.HOUR, keep, using=using, now=now)
        delete(queue, Bucket.DAY, keep, using=using, now=now)
    delete_surplus(queue, using=using)


def sum_up(queue: str, span: Bucket, part: Bucket, *, using: str, now: datetime) -> bool:
    """Sum up the spans that are over and have not been, in order; return whether that was all."""
    turns = range(SPANS_A_ROUND)
    return not all(sum_up_next(queue, span, part, using=using, now=now) for _turn in turns)


@retry_transaction
def sum_up_next(queue: str, span: Bucket, part: Bucket, *, using: str, now: datetime) -> bool:
    """Sum up the oldest span that has not been; return whether there was one that is over."""
    with in_transaction(using) as db:
        since = summed_until(db, queue, span) or now - LONG_AGO
        first = first_since(db, queue, part, since)
        if first is None:
            return False
        start = start_of(span, first)
        until = start + timedelta(seconds=int(span))
        if until + timedelta(seconds=GRACE) > now:
            return False
        if part == Bucket.SLICE:
            found = slices(db, queue, start, until)
            found |= sums(db, queue, part, start, until, TYPES)
        else:
            found = sums(db, queue, part, start, until, EVERYTHING)
        write(db, span, start, folded(found, MOST_ROWS), LATEST)
        return True


def delete(queue: str, span: Bucket, keep: float, *, using: str, now: datetime) -> None:
    """Delete what is older than so many seconds, or a good part of it."""
    for of in (USERS, TYPES):
        for _batch in range(BATCHES):
            before = now - timedelta(seconds=keep)
            if delete_batch(OLD.replace("{of}", of), queue, span, before, using=using) < BATCH:
                break


def delete_surplus(queue: str, *, using: str) -> None:
    """Delete the totals of the newest types beyond MOST_TYPES; they are in that of all types."""
    delete_batch(SURPLUS, queue, Bucket.TOTAL, EPOCH, using=using)


@retry_transaction
def delete_batch(old: str, queue: str, span: Bucket, before: datetime, *, using: str) -> int:
    """Delete a bounded number of rows; return how many. Those that someone holds are left."""
    with in_transaction(using) as db:
        values = {"queue": queue, "span": int(span), "limit": BATCH, "most": MOST_TYPES}
        values["before"] = db.dialect.parameter(before)
        statement = old + db.dialect.skip_clause()
        ids = [row for (row,) in db.rows(statement, values)]
        if ids:
            db.execute(DELETE, ids=ids)
        return len(ids)
