"""Compare the counters of what runs with the tickets, and correct those that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from django_perfectqueue.lib.stored_json import names_in

from ..database.dialects.base import Row
from ..database.transaction import Session, in_transaction, reading, retry_transaction
from ..lanes.accounts import LOCK
from ..limits.holds import open_holds
from ..limits.meters import locked
from ..notify.ring import notify_workers

BATCH = 5000
FIRST = -(2**63)

LAST_LANE = """
SELECT MAX("id") FROM (
    SELECT "id" FROM "perfectqueue_account" WHERE "id" > %(after)s ORDER BY "id" LIMIT %(limit)s
) AS "some"
"""
LANES = """
SELECT "own"."id", "own"."queue", "own"."user", "own"."running", COALESCE("held"."tasks", 0)
FROM "perfectqueue_account" AS "own"
LEFT JOIN (
    SELECT COALESCE("lane"."account", "ticket"."lane") AS "account", COUNT(*) AS "tasks"
    FROM "perfectqueue_ticket" AS "ticket"
    LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
    WHERE "ticket"."state" = 2 AND "ticket"."timer_at" IS NOT NULL
    GROUP BY COALESCE("lane"."account", "ticket"."lane")
) AS "held" ON "held"."account" = "own"."id"
WHERE "own"."running" <> COALESCE("held"."tasks", 0) AND {which}
"""
SET_LANES = """
UPDATE "perfectqueue_account" SET "running" = CASE "id" {running} END WHERE "id" IN ({ids})
"""

LAST_METER = """
SELECT MAX("key") FROM (
    SELECT "key" FROM "perfectqueue_meter" WHERE "key" > %(after)s ORDER BY "key" LIMIT %(limit)s
) AS "some"
"""
METERS = """
SELECT "key", NULL, "running" FROM "perfectqueue_meter" WHERE {which}
UNION ALL
SELECT NULL, "lane"."keys", COUNT(*)
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
WHERE "ticket"."state" = 2 AND "ticket"."timer_at" IS NOT NULL
GROUP BY "lane"."keys"
"""
SET_METER = 'UPDATE "perfectqueue_meter" SET "running" = %(running)s WHERE "key" = %(key)s'


@dataclass(frozen=True, slots=True)
class Drift:
    """A counter that was not what the tickets say: of which lane or limit it is."""

    name: str
    counted: int
    running: int

    def __str__(self) -> str:
        return f"{self.name} counted={self.counted} running={self.running}"


@dataclass(frozen=True, slots=True)
class Position:
    """Up to which lane and which meter counters have been compared."""

    lane: int = FIRST
    meter: str = ""


def recount(after: Position, *, using: str) -> tuple[Position, list[Drift]]:
    """
    Compare the counters of the next BATCH lanes, or after the last one meters, and correct those
    that differ.

    Return where to go on, which is the beginning after the last ones, and what was corrected.
    It reads these rows, and every ticket that runs; on a database without an index
    of these it passes those that are scheduled, too. Only a counter that differs is locked.
    """
    corrected: list[Drift] = []
    if not after.meter:
        lane, lanes = next_lanes(after.lane, using=using)
        corrected = correct_lanes(lanes, using=using) if lanes else []
        if lane != FIRST:
            return Position(lane), corrected
    # Meters follow the last lane, so that a round ends whenever rows of either are added.
    meter, meters = next_meters(after.meter, using=using)
    corrected += correct_meters(meters, using=using) if meters else []
    return Position(meter=meter), corrected


@retry_transaction
def next_lanes(after: int, *, using: str) -> tuple[int, list[int]]:
    """Return the last of the next lanes, and which accounts of them differ."""
    with reading(using) as db:
        values = {"after": after, "limit": BATCH}
        [last] = db.execute(LAST_LANE, values).fetchone()
        if last is None:
            return FIRST, []
        within = '"own"."id" > %(after)s AND "own"."id" <= %(last)s'
        rows = differing(db, within, {"after": after, "last": last})
        return int(last), [row[0] for row in rows]


def differing(
    db: Session, which: str, values: Mapping[str, int] | None = None, *, ids: Collection[int] = ()
) -> list[Row]:
    """Return the id, queue, user, counter and running tasks of accounts whose counter is wrong."""
    # One statement: counter and tickets change in one transaction, so both are of one moment.
    rows: list[Row] = db.rows(LANES.replace("{which}", which), values, ids=ids)
    return rows


@retry_transaction
def correct_lanes(ids: Collection[int], *, using: str) -> list[Drift]:
    with in_transaction(using) as db:
        # Who takes or ends a task now has yet to count it, and waits for this lock.
        db.execute(LOCK + db.dialect.lock_clause, accounts=ids)
        rows = differing(db, '"own"."id" IN ({ids})', ids=ids)
        if not rows:
            return []
        running = " ".join(f"WHEN {row[0]} THEN {row[4]}" for row in rows)
        wrong = [row[0] for row in rows]
        db.execute(SET_LANES.replace("{running}", running), ids=wrong)
    for queue in {row[1] for row in rows}:
        notify_workers(queue, using=using)
    return [
        Drift(f"queue={queue!r} user={user!r}", counted, tasks)
        for _id, queue, user, counted, tasks in rows
    ]


@retry_transaction
def next_meters(after: str, *, using: str) -> tuple[str, list[str]]:
    """Return the last of the next meters, and which of them differ."""
    with reading(using) as db:
        values = {"after": after, "limit": BATCH}
        [last] = db.execute(LAST_METER, values).fetchone()
        if last is None:
            return "", []
        within = '"key" > %(after)s AND "key" <= %(last)s'
        counts = counts_of(db, within, {"after": after, "last": last})
        return str(last), sorted(counts)


def counts_of(
    db: Session, which: str, values: Mapping[str, str] | None = None, *, keys: Collection[str] = ()
) -> dict[str, tuple[int, int]]:
    """Return what meters count and what runs, where that differs."""
    rows = db.rows(METERS.replace("{which}", which), values, keys=keys)
    running: Counter[str] = Counter()
    for key, own, tasks in rows:
        if key is None:
            running.update(dict.fromkeys(names_in(own), tasks))
    counted = {key: count for key, _keys, count in rows if key is not None}
    return {key: (count, running[key]) for key, count in counted.items() if count != running[key]}


@retry_transaction
def correct_meters(keys: Collection[str], *, using: str) -> list[Drift]:
    with in_transaction(using) as db:
        locked(db, keys, None)
        counts = counts_of(db, '"key" IN ({keys})', keys=sorted(keys))
        for key, (_counted, running) in counts.items():
            db.execute(SET_METER, {"key": key, "running": running})
        if counts:
            open_holds(db, counts, None)
    if counts:
        notify_workers(using=using)
    return [Drift(f"limit={key!r}", *counts[key]) for key in counts]
