"""Sum slices of usage up to minutes, and minutes to hours; delete what is too old."""

from __future__ import annotations

from datetime import datetime, timedelta

from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.models import Bucket, Usage

from ..database.dialects.base import numbers
from ..database.transaction import repeated, unit
from .usage import LATEST, MOST_ROWS, clock, folded, start_of, write
from .usage_read import first_since, slices, summed_until, sums

GRACE = 15.0
SPANS_A_ROUND = 100
BATCH = 1_000
BATCHES = 10
SLICES_KEPT, MINUTES_KEPT = 300.0, 3 * 3_600.0
LONG_AGO = timedelta(days=3_650)

OLD = """
SELECT "id" FROM "perfectqueue_usage"
WHERE "queue" = %(queue)s AND "span" = %(span)s AND "start" < %(before)s
ORDER BY "start" LIMIT %(limit)s
"""
DELETE = 'DELETE FROM "perfectqueue_usage" WHERE "id" IN ({ids})'


def roll_up(*, using: str, keep: float | None, now: datetime | None = None) -> None:
    """
    Sum up every minute and hour that has passed, and delete what has been summed up.

    Slices are kept for five minutes, minutes for three hours, and hours for ``keep``
    seconds; None is for ever. Sums are computed anew and not added to, so however many do
    this at the same time, it comes to the same.
    """
    moment = clock(using=using, now=now)
    for queue in distinct(Usage._default_manager.using(using), "queue", limit=None):
        if sum_up(queue, Bucket.MINUTE, Bucket.SLICE, using=using, now=moment):
            delete(queue, Bucket.SLICE, SLICES_KEPT, using=using, now=moment)
            if sum_up(queue, Bucket.HOUR, Bucket.MINUTE, using=using, now=moment):
                delete(queue, Bucket.MINUTE, MINUTES_KEPT, using=using, now=moment)
        if keep is not None:
            delete(queue, Bucket.HOUR, keep, using=using, now=moment)


def sum_up(queue: str, span: Bucket, part: Bucket, *, using: str, now: datetime) -> bool:
    """Sum up the spans that are over and have not been, in order; return whether that was all."""
    turns = range(SPANS_A_ROUND)
    return not all(sum_up_next(queue, span, part, using=using, now=now) for _turn in turns)


@repeated
def sum_up_next(queue: str, span: Bucket, part: Bucket, *, using: str, now: datetime) -> bool:
    """Sum up the oldest span that has not been; return whether there was one that is over."""
    with unit(using) as (cursor, dialect):
        since = summed_until(cursor, dialect, queue, span) or now - LONG_AGO
        first = first_since(cursor, dialect, queue, part, since)
        if first is None:
            return False
        start = start_of(span, first)
        until = start + timedelta(seconds=int(span))
        if until + timedelta(seconds=GRACE) > now:
            return False
        if part == Bucket.SLICE:
            found = slices(cursor, dialect, queue, start, until)
        else:
            found = sums(cursor, dialect, queue, part, start, until)
        write(cursor, dialect, span, start, folded(found, MOST_ROWS), LATEST)
        return True


def delete(queue: str, span: Bucket, keep: float, *, using: str, now: datetime) -> None:
    """Delete what is older than so many seconds, or a good part of it."""
    before = now - timedelta(seconds=keep)
    for _batch in range(BATCHES):
        if delete_batch(queue, span, before, using=using) < BATCH:
            return


@repeated
def delete_batch(queue: str, span: Bucket, before: datetime, *, using: str) -> int:
    """Delete a bounded number of rows; return how many. Those that someone holds are left."""
    with unit(using) as (cursor, dialect):
        values = {"queue": queue, "span": int(span), "limit": BATCH}
        values["before"] = dialect.parameter(before)
        statement = OLD + dialect.skip_clause()
        ids = [row for (row,) in dialect.execute(cursor, statement, values).fetchall()]
        if ids:
            dialect.execute(cursor, DELETE.replace("{ids}", numbers(sorted(ids))))
        return len(ids)
