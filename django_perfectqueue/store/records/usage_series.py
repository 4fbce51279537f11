"""Read how attempts ended and how long they took: by time, and since ever."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django_perfectqueue.models import Bucket

from ..database.transaction import reading
from .usage import AMOUNTS, Tally, UsageKey

COLUMNS = ", ".join(f'"{column}"' for column in AMOUNTS)
SERIES = f"""
SELECT "queue", "type", "others", "user", "span", "start", {COLUMNS} FROM "perfectqueue_usage"
WHERE "queue" IN ({{queues}}) AND "span" IN ({{spans}}) AND "type" IN ({{types}})
    AND "others" = %(others)s AND "user" = %(user)s
    AND "start" >= %(since)s AND "start" < %(until)s
ORDER BY "span" DESC, "start"
"""
TOTALS = f"""
SELECT "queue", "type", "others", {COLUMNS} FROM "perfectqueue_usage"
WHERE "queue" IN ({{queues}}) AND "span" = 0 ORDER BY "others" DESC, "id" LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True)
class Point:
    """What a user or a type got within the ``span`` of seconds from ``start`` on."""

    usage_key: UsageKey
    span: int
    start: datetime
    tally: Tally


def series(
    usage_keys: Sequence[UsageKey], since: datetime, until: datetime, *, unit: Bucket, using: str
) -> list[Point]:
    """
    Return what there is of types, or of one user, from the longest spans up to ``unit`` down.

    A shorter span is left out where a longer one has summed it up. All keys are of one sort:
    single types, all types, or one user.
    """
    if not usage_keys:
        return []
    spans = [int(span) for span in Bucket if 0 < span <= unit]
    queues = {key.queue for key in usage_keys}
    types = {key.type for key in usage_keys}
    with reading(using) as db:
        values = {
            "others": usage_keys[0].others,
            "user": usage_keys[0].user,
            "since": db.dialect.parameter(since),
            "until": db.dialect.parameter(until),
        }
        rows = db.rows(SERIES, values, queues=queues, types=types, spans=spans)
        points = [
            Point(
                UsageKey(queue, bool(others), user, type_),
                span,
                db.dialect.moment(start),
                Tally.of(amounts),
            )
            for queue, type_, others, user, span, start, *amounts in rows
        ]
    return without_parts(points)


def without_parts(points: Iterable[Point]) -> list[Point]:
    """Leave out points of shorter spans that a longer one contains; the longest come first."""
    kept: list[Point] = []
    summed: dict[UsageKey, dict[int, datetime]] = {}
    for point in points:
        ends = summed.setdefault(point.usage_key, {})
        longer = [end for span, end in ends.items() if span > point.span]
        if not longer or point.start >= max(longer):
            kept.append(point)
            ends[point.span] = point.start + timedelta(seconds=point.span)
    return kept


def totals(queues: Collection[str], *, most: int, using: str) -> dict[UsageKey, Tally]:
    """Return what all types of these queues got since ever, and that of the oldest types."""
    if not queues:
        return {}
    with reading(using) as db:
        rows = db.rows(TOTALS, {"most": most}, queues=queues)
    return {
        UsageKey(queue, bool(others), "", type_): Tally.of(amounts)
        for queue, type_, others, *amounts in rows
    }
