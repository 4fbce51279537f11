"""Read what was written of usage: sums of what is summed up, and slices that are not yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import TypedDict

from django_perfectqueue.models import Bucket

from ..arithmetic.entitlement import Contender, entitlements
from ..arithmetic.fair_order import lane_id
from ..database.dialects import Dialect
from ..database.dialects.base import Row
from ..database.session import Session
from .usage import AMOUNTS, Tally, UsageKey

LANES_A_STATEMENT = 1_000
COUNTS_A_STATEMENT = 100

PLACE = """
FROM "perfectqueue_usage"
WHERE "queue" = %(queue)s AND "span" = %(span)s AND {of}
    AND "start" >= %(since)s AND "start" < %(until)s
"""
USERS, TYPES, EVERYTHING = "\"type\" = ''", "\"type\" > ''", "\"type\" >= ''"


def summed(column: str) -> str:
    return f'{"MAX" if column == "longest" else "SUM"}("{column}")'


SUMS = f"""
SELECT "others", "user", "type", {", ".join(map(summed, AMOUNTS))} {PLACE}
GROUP BY "others", "user", "type"
"""
ROWS = f"""
SELECT "start", "others", "user", {", ".join(f'"{column}"' for column in AMOUNTS)} {PLACE}
ORDER BY "start"
"""
NEWEST = """
SELECT MAX("start") FROM "perfectqueue_usage"
WHERE "queue" = %(queue)s AND "span" = %(span)s AND "type" = ''
"""
OLDEST = """
SELECT MIN("start") FROM "perfectqueue_usage"
WHERE "queue" = %(queue)s AND "span" = %(span)s AND "type" = '' AND "start" >= %(since)s
"""
TERMS = """
SELECT "id", "weight", "max_running" FROM "perfectqueue_lane" WHERE "id" IN ({lanes})
"""
STANDINGS = """
SELECT "id", "account", "gate", "weight", "max_running", "running" FROM "perfectqueue_lane"
WHERE "id" IN ({lanes}) OR ("gate" <> 0 AND "account" IN ({lanes}))
"""
COUNT = """
SELECT {lane}, COUNT(*) FROM (
    SELECT 1 FROM "perfectqueue_ticket" WHERE "state" = 0 AND "lane" = {lane} LIMIT %(most)s
) AS "line"
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which a user competed: the weight and the cap of its lane."""

    weight: float = 1.0
    max_running: int | None = None


class Standing(TypedDict, total=False):
    """What holds for a user now; no more than its tasks that wait where it has no account."""

    weight: float
    max_running: int | None
    running: int
    waiting: int


def summed_until(db: Session, queue: str, span: int) -> datetime | None:
    """Return the end of the newest span of this length, or None where there is none."""
    values = {"queue": queue, "span": int(span)}
    [start] = db.execute(NEWEST, values).fetchone()
    return None if start is None else db.dialect.moment(start) + timedelta(seconds=int(span))


def first_since(db: Session, queue: str, span: int, since: datetime) -> datetime | None:
    """Return the start of the oldest span of this length that is no older than that."""
    values = {"queue": queue, "span": int(span), "since": db.dialect.parameter(since)}
    [start] = db.execute(OLDEST, values).fetchone()
    return None if start is None else db.dialect.moment(start)


def sums(
    db: Session, queue: str, span: int, since: datetime, until: datetime, of: str = USERS
) -> dict[UsageKey, Tally]:
    """Return what everyone got in spans of this length: since, and before."""
    values = place(db.dialect, queue, span, since, until)
    rows = db.rows(SUMS.replace("{of}", of), values)
    return {
        UsageKey(queue, bool(others), user, type_): Tally.of(amounts)
        for others, user, type_, *amounts in rows
    }


def slices(db: Session, queue: str, since: datetime, until: datetime) -> dict[UsageKey, Tally]:
    """Return what everyone got in the slices of some time, and was entitled to in each."""
    values = place(db.dialect, queue, Bucket.SLICE, since, until)
    rows = db.rows(ROWS.replace("{of}", USERS), values)
    terms = terms_of(db, queue, {user for _start, others, user, *_ in rows if not others})
    totals: dict[UsageKey, Tally] = {}
    for _start, some in groupby(rows, key=lambda row: row[0]):
        tallies = {
            UsageKey(queue, bool(others), user): Tally.of(amounts)
            for _start, others, user, *amounts in some
        }
        entitle(tallies, terms)
        for usage_key, tally in tallies.items():
            totals.setdefault(usage_key, Tally()).add(tally)
    return totals


def entitle(tallies: dict[UsageKey, Tally], terms: dict[str, Terms]) -> None:
    """
    Say what each was entitled to within one slice.

    Who was paused or at its cap for a moment is taken to have wanted no more, and so are
    those who are summed up as others. Where more waited than were looked at, everyone else who
    got something is taken to have waited for more.
    """
    many = any(usage_key.others and tally.eager for usage_key, tally in tallies.items())
    contenders = {}
    for usage_key, tally in tallies.items():
        if usage_key.others:
            tally.entitled = tally.seconds
            continue
        its = terms.get(usage_key.user, Terms())
        most = {} if its.max_running is None else {"most": float(its.max_running * Bucket.SLICE)}
        held = tally.paused or tally.capped
        eager = not held and bool(tally.eager or (many and tally.seconds > 0))
        contenders[usage_key] = Contender(tally.seconds, its.weight, eager, **most)
    for usage_key, seconds in entitlements(contenders).items():
        tallies[usage_key].entitled = seconds


def terms_of(db: Session, queue: str, users: Iterable[str]) -> dict[str, Terms]:
    """Return the terms of users; one that has no lane has those of anyone."""
    owners = {lane_id(queue, user): user for user in users}
    rows = rows_of_lanes(db, TERMS, owners)
    return {owners[lane]: Terms(weight, most) for lane, weight, most in rows}


def rows_of_lanes(db: Session, statement: str, lanes: Iterable[int]) -> Iterator[Row]:
    """Yield the rows of a statement for some of the lanes at a time."""
    ids = sorted(lanes)
    for first in range(0, len(ids), LANES_A_STATEMENT):
        yield from db.rows(statement, lanes=ids[first : first + LANES_A_STATEMENT])


def place(
    dialect: Dialect, queue: str, span: int, since: datetime, until: datetime
) -> dict[str, object]:
    return {
        "queue": queue,
        "span": int(span),
        "since": dialect.parameter(since),
        "until": dialect.parameter(until),
    }


def standings(db: Session, queue: str, users: Iterable[str], most: int) -> dict[str, Standing]:
    """
    Return of each user that has a lane what holds for it now: weight and cap, what runs and
    what waits, of which no more than ``most`` and one are counted in each of its lanes.
    """
    owners = {lane_id(queue, user): user for user in users}
    found: dict[str, Standing] = {}
    lanes: dict[int, str] = {}
    rows = rows_of_lanes(db, STANDINGS, owners)
    for lane, account, gate, weight, max_running, running in rows:
        lanes[lane] = user = owners[account]
        facts = found.setdefault(user, {"waiting": 0})
        if not gate:
            facts |= {"weight": weight, "max_running": max_running, "running": running}
    counts = waiting(db, sorted(lanes), most)
    for lane, count in counts.items():
        facts = found[lanes[lane]]
        facts["waiting"] = min(facts["waiting"] + count, most + 1)
    return found


def waiting(db: Session, lanes: list[int], most: int) -> dict[int, int]:
    """Return how many tickets wait in each lane, counted no further than one above ``most``."""
    counts: dict[int, int] = {}
    for first in range(0, len(lanes), COUNTS_A_STATEMENT):
        statement = " UNION ALL ".join(
            COUNT.replace("{lane}", str(int(lane)))
            for lane in lanes[first : first + COUNTS_A_STATEMENT]
        )
        counts.update(db.rows(statement, {"most": most + 1}))
    return counts
