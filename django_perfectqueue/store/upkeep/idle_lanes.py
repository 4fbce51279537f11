"""Delete lanes, holds and meters that nobody needs any more, a bounded batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django_perfectqueue.models import Policy

from ..database.session import Session
from ..database.transaction import in_transaction, reading, retry_transaction
from ..lanes.share_sync import correct_shares
from ..lanes.wake import LAST, floor
from ..limits.meters import locked

BATCH = 500
IDLE = 600.0
"""In seconds. Who takes tasks reads a lane first and counts them in it last, without a lock
in between: so a lane goes only when no one can have seen it open for longer than that takes."""
FIRST_ID = -(2**63)

LANES = """
SELECT "id" FROM "perfectqueue_lane" WHERE "id" > %(after)s ORDER BY "id" LIMIT %(limit)s
"""
IDLE_LANES = """
SELECT "lane"."id", "lane"."queue", "lane"."gate", "lane"."virtual_time", "lane"."finish_tag",
    "lane"."policy"
FROM "perfectqueue_lane" AS "lane"
WHERE "lane"."id" IN ({lanes}) AND "lane"."has_waiting" = FALSE AND "lane"."running" = 0
    AND "lane"."since" <= {idle_since}
    AND NOT EXISTS (
        SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
        WHERE "ticket"."state" = 0 AND "ticket"."lane" = "lane"."id"
    )
    AND NOT EXISTS (
        SELECT 1 FROM "perfectqueue_lane" AS "other"
        WHERE NOT ("other"."gate" = 0) AND "lane"."gate" = 0 AND "other"."account" = "lane"."id"
    )
    AND NOT EXISTS (
        SELECT 1 FROM "perfectqueue_lane" AS "own"
        WHERE "own"."id" = "lane"."account" AND "own"."running" > 0
    )
ORDER BY "lane"."id"
"""
LOCK_LANES = """
SELECT "id" FROM "perfectqueue_lane"
WHERE "id" IN ({lanes}) AND "has_waiting" = FALSE AND "running" = 0 ORDER BY "id"
"""
LAST_TAG = f"""
SELECT "finish_tag" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "gate" = %(gate)s AND "finish_tag" > 0.0
ORDER BY "finish_tag" DESC LIMIT 1 OFFSET {LAST - 1}
"""
COMPETING = """
SELECT EXISTS (
    SELECT 1 FROM "perfectqueue_lane"
    WHERE "queue" = %(queue)s AND "held_by" = 0 AND "ready" = TRUE
) OR EXISTS (SELECT 1 FROM "perfectqueue_hold" WHERE "queue" = %(queue)s)
"""
FORGET_LANES = 'DELETE FROM "perfectqueue_lane" WHERE "id" IN ({lanes})'

HOLDS = """
SELECT "id", "key" FROM "perfectqueue_hold" WHERE "id" > %(after)s ORDER BY "id" LIMIT %(limit)s
"""
FORGET_HOLDS = """
DELETE FROM "perfectqueue_hold" WHERE "id" IN ({holds}) AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_lane" AS "lane"
    WHERE "lane"."queue" = "perfectqueue_hold"."queue"
        AND "lane"."held_by" = "perfectqueue_hold"."id"
)
"""

METERS = """
SELECT "key" FROM "perfectqueue_meter" WHERE "key" > %(after)s ORDER BY "key" LIMIT %(limit)s
"""
LOCK_METERS = """
SELECT "key" FROM "perfectqueue_meter"
WHERE "key" IN ({keys}) AND "running" = 0 AND ("next_at" IS NULL OR "next_at" <= {now})
ORDER BY "key"
"""
FORGET_METERS = 'DELETE FROM "perfectqueue_meter" WHERE "key" IN ({keys})'


@retry_transaction
def forget_lanes(
    after: int,
    *,
    using: str,
    limit: int = BATCH,
    idle: float = IDLE,
    now: datetime | None = None,
) -> int | None:
    """
    Look at so many lanes behind an id, and delete those that have been idle for so many
    seconds; return where the next batch begins, or None at the end.

    A lane is made anew when its user comes back, at the virtual time of its queue. So while
    others compete, one that is further ahead than that stays, as do those that give the
    time.

    Who submits tasks looks after the commit whether their lane is awake, and wakes it, which
    makes the row; what is missed so is found by wake_forgotten_lanes(). One that is woken in
    the very moment in which it is deleted may be made anew with the share of someone who has
    none; so those that carry another share than they should are corrected here, too.
    """
    with reading(using) as db:
        rows = db.rows(LANES, {"after": after, "limit": limit})
        known = [lane for (lane,) in rows]
        lanes = idle_lanes(db, known, idle, now)
    if lanes:
        with in_transaction(using) as db:
            rows_now = db.rows(LOCK_LANES + db.dialect.skip_clause, lanes=lanes)
            locked_lanes = [lane for (lane,) in rows_now]
            # Once more, as they are now that nobody else can change them.
            if still := idle_lanes(db, locked_lanes, idle, now):
                db.execute(FORGET_LANES, lanes=still)
    correct_shares(known, using=using)
    return rows[-1][0] if len(rows) == limit else None


def idle_lanes(db: Session, lanes: list[int], idle: float, now: datetime | None) -> list[int]:
    """Return those of these lanes that nobody needs."""
    if not lanes:
        return []
    rows = db.rows(IDLE_LANES, now=now, after={"idle_since": -idle}, lanes=lanes)
    places = {place: place_of(db, *place) for place in {(row[1], row[2]) for row in rows}}
    return [
        lane
        for lane, queue, gate, virtual_time, finish_tag, policy in rows
        if places[queue, gate].spares(virtual_time, finish_tag, policy)
    ]


@dataclass(frozen=True, slots=True)
class SweepPosition:
    """
    What is needed of the lanes behind a gate, or none: those with the last finish tags, and
    those ahead of the virtual time, which is None where lanes carry copies of it.
    """

    competing: bool
    last_tag: float = 0.0
    virtual_time: float | None = None

    def spares(self, virtual_time: float, finish_tag: float, policy: int) -> bool:
        if not self.competing:
            return True
        if finish_tag and finish_tag >= self.last_tag:
            return False
        if self.virtual_time is None or policy != Policy.FAIR:
            return True
        return virtual_time <= self.virtual_time


def place_of(db: Session, queue: str, gate: int) -> SweepPosition:
    terms = {"queue": queue, "gate": gate}
    if not db.execute(COMPETING, terms).fetchone()[0]:
        return SweepPosition(competing=False)
    row = db.execute(LAST_TAG, terms).fetchone()
    time = None if gate else floor(db, queue).virtual_time
    return SweepPosition(True, float(row[0]) if row else 0.0, time)


@retry_transaction
def forget_holds(after: int, *, using: str, limit: int = BATCH) -> int | None:
    """
    Look at so many holds behind an id, and delete those under which no lane is; return where
    the next batch begins, or None at the end.

    Who puts a lane under a hold has locked the limit's meter, so that it does not go meanwhile.
    """
    with in_transaction(using) as db:
        rows = db.rows(HOLDS, {"after": after, "limit": limit})
        if rows:
            locked(db, {key for _id, key in rows}, None)
            db.execute(FORGET_HOLDS, holds=[id_ for id_, _key in rows])
    return rows[-1][0] if len(rows) == limit else None


@retry_transaction
def forget_meters(after: str, *, using: str, limit: int = BATCH) -> str | None:
    """
    Look at so many meters behind a key, and delete those that count nothing; return where the
    next batch begins, or None at the end.

    Who counts a task locks its meters before, and makes those that are missing.
    """
    with in_transaction(using) as db:
        rows = db.rows(METERS, {"after": after, "limit": limit})
        if rows:
            lock = LOCK_METERS + db.dialect.skip_clause
            idle = db.rows(lock, keys=[key for (key,) in rows])
            if idle:
                db.execute(FORGET_METERS, keys=[key for (key,) in idle])
    return rows[-1][0] if len(rows) == limit else None
