"""Read what was written of usage: minutes, and older hours; nothing is in both."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias, TypedDict

from django_perfectqueue.models import Bucket

from ..arithmetic.entitlement import Contender, entitlements
from ..arithmetic.fair_order import lane_id
from ..database.dialects.base import Row
from ..database.session import Session
from ..database.transaction import reading
from .usage import AMOUNTS, Tally, UsageKey

LANES_A_STATEMENT = 1_000
COUNTS_A_STATEMENT = 100

PLACE = """
FROM "perfectqueue_usage"
WHERE "queue" = %(queue)s AND "span" IN (60, 3600) AND {of}
    AND "start" >= %(since)s AND "start" < %(until)s
"""
USERS, TYPES = "\"type\" = ''", "\"type\" > ''"
ALL_MINUTES = '"span" = 60 AND "type" >= \'\''
ONE = '"type" = %(type)s AND "others" = %(others)s AND "user" = %(user)s'


def summed(column: str) -> str:
    return f'{"MAX" if column == "longest" else "SUM"}("{column}")'


SUMS = f"""
SELECT {{by}}, {", ".join(map(summed, AMOUNTS))} {PLACE} GROUP BY {{by}}
"""
MINUTES = f"""
SELECT "start", "others", "user", "seconds", "entitled", "eager", "paused" + "capped"
{PLACE.replace("IN (60, 3600)", "= 60").replace("{of}", USERS)} ORDER BY "start"
"""
TOTALS = f"""
SELECT "queue", "type", "others", {", ".join(f'"{column}"' for column in AMOUNTS)}
FROM "perfectqueue_usage"
WHERE "queue" IN ({{queues}}) AND "span" = 0 ORDER BY "others" DESC, "id" LIMIT %(most)s
"""
TERMS = """
SELECT "id", "weight", "max_running" FROM "perfectqueue_account" WHERE "id" IN ({lanes})
"""
STANDINGS = """
SELECT "own"."id", "lane"."id", "own"."weight", "own"."max_running", "own"."running"
FROM "perfectqueue_account" AS "own"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."account" = "own"."id"
WHERE "own"."id" IN ({lanes})
"""
COUNT = """
SELECT {lane}, COUNT(*) FROM (
    SELECT 1 FROM "perfectqueue_ticket" WHERE "state" = 0 AND "lane" = {lane} LIMIT %(most)s
) AS "line"
"""


Terms: TypeAlias = "tuple[float, int | None]"
"""Under which a user competed: the weight and the cap of its lane."""


class UserMinute(NamedTuple):
    """What a user, or the others, got in a minute, and whether it is known to have wanted more."""

    start: datetime
    others: bool
    user: str
    seconds: float
    entitled: float
    eager: int
    held: int


class UsageStanding(TypedDict, total=False):
    """What holds for a user now; no more than its tasks that wait where it has no account."""

    weight: float
    max_running: int | None
    running: int
    waiting: int


def received(
    db: Session, queue: str, since: datetime, until: datetime, of: str
) -> dict[UsageKey, Tally]:
    """
    Return what everyone got since, and before; of users what they were entitled to, too.

    Older than an hour are whole hours.
    """
    statement = SUMS.replace("{by}", '"others", "user", "type"').replace("{of}", of)
    found = {
        UsageKey(queue, bool(others), user, type_): Tally.of(amounts)
        for others, user, type_, *amounts in db.rows(statement, place(db, queue, since, until))
    }
    if of != TYPES:
        for usage_key, seconds in entitled(db, queue, since, until):
            # What was written since the sums were read is left out.
            if usage_key in found:
                found[usage_key].entitled += seconds
    return found


def entitled(
    db: Session, queue: str, since: datetime, until: datetime
) -> Iterator[tuple[UsageKey, float]]:
    """Yield what users were entitled to in each minute that has not been folded."""
    rows = [UserMinute(*row) for row in db.rows(MINUTES, place(db, queue, since, until))]
    owners = {lane_id(queue, row.user): row.user for row in rows if not row.others}
    # One that has no lane has the terms of anyone.
    terms = {
        owners[lane]: (weight, most) for lane, weight, most in rows_of_lanes(db, TERMS, owners)
    }
    for _start, some in groupby(rows, key=attrgetter("start")):
        minute = list(some)
        if not any(one.entitled for one in minute):
            for one, seconds in entitle(minute, terms).items():
                yield UsageKey(queue, bool(one.others), one.user), seconds


def series(
    db: Session, usage_key: UsageKey, since: datetime, until: datetime
) -> list[tuple[datetime, Tally]]:
    """Return what a type or a user got by time: in minutes, and in hours what is older."""
    names = {"type": usage_key.type, "others": usage_key.others, "user": usage_key.user}
    statement = SUMS.replace("{by}", '"start"').replace("{of}", ONE)
    rows = db.rows(statement, place(db, usage_key.queue, since, until) | names)
    return [(db.dialect.moment(start), Tally.of(amounts)) for start, *amounts in rows]


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
        if one.others or not math.isfinite(one.seconds):
            found[one] = one.seconds
            continue
        weight, cap = terms.get(one.user, (1.0, None))
        most = math.inf if cap is None else float(cap * Bucket.MINUTE)
        eager = not one.held and bool(one.eager or (many and one.seconds > 0))
        contenders[one] = Contender(one.seconds, weight, eager, most)
    return found | entitlements(contenders)


def rows_of_lanes(db: Session, statement: str, lanes: Iterable[int]) -> Iterator[Row]:
    """Yield the rows of a statement for some of the lanes at a time."""
    ids = sorted(lanes)
    for first in range(0, len(ids), LANES_A_STATEMENT):
        yield from db.rows(statement, lanes=ids[first : first + LANES_A_STATEMENT])


def place(db: Session, queue: str, since: datetime, until: datetime) -> dict[str, object]:
    return {
        "queue": queue,
        "since": db.dialect.parameter(since),
        "until": db.dialect.parameter(until),
    }


def standings(db: Session, queue: str, users: Iterable[str], most: int) -> dict[str, UsageStanding]:
    """
    Return of each user that has a lane what holds for it now: weight and cap, what runs and
    what waits, of which no more than ``most`` and one are counted in each of its lanes.
    """
    owners = {lane_id(queue, user): user for user in users}
    found: dict[str, UsageStanding] = {}
    lanes: dict[int, str] = {}
    rows = rows_of_lanes(db, STANDINGS, owners)
    for account, lane, weight, max_running, running in rows:
        lanes[account] = lanes[lane or account] = user = owners[account]
        terms: UsageStanding = {"weight": weight, "max_running": max_running, "running": running}
        found[user] = {"waiting": 0, **terms}
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
