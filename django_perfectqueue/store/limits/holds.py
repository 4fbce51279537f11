"""
Lanes that a limit holds back, and when each such limit is looked at again.

A held lane is left out of the fair order, so who looks for tasks does not read past it. It
is filed under the limit that lets none of its tasks start. Both are written under the lock
of this limit's meter, by the transaction that fills or frees it: so a crash leaves no lane
held behind an open limit without a time at which it is looked at.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django_perfectqueue.lib.stored_json import names_in

from ..arithmetic.fair_order import LANES_PROBED, hashed
from ..arithmetic.rate_limit import Allowance
from ..database.transaction import Session, in_transaction, reading, retry_transaction
from .meters import METERS, Meters, allowances

# In seconds. A lane that was let back into the fair order may not use the room that it was
# given: its user is paused, or another limit is full. Then the next one is, after so long.
RECHECK = 1.0
SPREAD = 4
FIRST_ID = -(2**63)
BATCH = 1000

DUE = """
SELECT * FROM (
    SELECT "id", "queue", "key" FROM "perfectqueue_hold"
    WHERE "queue" = %({queue})s AND "opens_at" <= {now} ORDER BY "opens_at" LIMIT {count}
) AS "due"
"""
STORE = 'INSERT INTO "perfectqueue_hold" ("id", "queue", "key", "opens_at") VALUES {rows} {change}'
OPEN = """
UPDATE "perfectqueue_hold" SET "opens_at" = {now}
WHERE "key" IN ({keys}) AND ("opens_at" IS NULL OR "opens_at" > {now})
"""
SHUT = """
SELECT "hold"."id", "hold"."key" FROM "perfectqueue_hold" AS "hold"
WHERE "hold"."id" > %(after)s AND ("hold"."opens_at" IS NULL OR "hold"."opens_at" > {now})
    AND EXISTS (
        SELECT 1 FROM "perfectqueue_lane" AS "lane"
        WHERE "lane"."held_by" = "hold"."id"
    )
ORDER BY "hold"."id" LIMIT %(limit)s
"""
FREE_LIMITED = """
SELECT DISTINCT "lane"."gate", "lane"."keys" FROM (
    SELECT "id" FROM "perfectqueue_account"
    WHERE "queue" IN ({queues}) AND "ready" = TRUE AND "has_open" = TRUE ORDER BY "turn"
    LIMIT %(count)s
) AS "first"
JOIN "perfectqueue_lane" AS "lane" ON "lane"."account" = "first"."id"
WHERE "lane"."held_by" = 0 AND "lane"."has_waiting" = TRUE
"""
# When the first hold of a queue is due.
NEXT = """(
    SELECT "opens_at" FROM "perfectqueue_hold"
    WHERE "queue" = %({queue})s AND "opens_at" IS NOT NULL ORDER BY "opens_at" LIMIT 1
)"""


def hold_id(queue: str, key: str) -> int:
    """Return the id of a limit's hold in a queue, which is never 0."""
    return hashed(queue, key) | 1


@dataclass(slots=True)
class DueHold:
    """
    A hold that is due: the lanes under it that this transaction looks at, and whether there
    are more.
    """

    id: int
    queue: str
    key: str
    lanes: list[int] = field(default_factory=list)
    more: bool = False


@dataclass(frozen=True, slots=True)
class SeenLane:
    """A lane behind limits that this transaction has looked at, and under which hold it was."""

    queue: str
    keys: Sequence[str]
    held_by: int
    ready: bool


def due_holds(db: Session, queues: Sequence[str], count: int) -> list[DueHold]:
    """
    Return holds that are due, at most ``count``, of those that have been due longest.

    Of many it draws some, so that processors that look at once lock different meters.
    """
    names = {f"q{number}": queue for number, queue in enumerate(queues)}
    due = DUE.replace("{count}", str(SPREAD * count))
    rows = db.union([due.replace("{queue}", name) for name in names], names)
    return [DueHold(*row) for row in random.sample(rows, min(count, len(rows)))]


@dataclass(slots=True)
class Holds:
    """
    Which lanes one transaction holds back, and which it lets back into the fair order.

    ``late`` are held lanes whose accounts have been served since they were filed: they wait
    too far in front, and are to be filed anew.
    """

    due: list[DueHold] = field(default_factory=list)
    seen: dict[int, SeenLane] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.due or self.seen)

    def changes(self, meters: Meters, short: Collection[int]) -> dict[int, int]:
        """Return the lanes whose hold changes, by what their limits let start from now on."""
        changed = {}
        for lane, seen in self.seen.items():
            key = None if lane in short else holding(seen.keys, meters.known)
            held = hold_id(seen.queue, key) if key else 0
            if held != seen.held_by:
                changed[lane] = held
        return changed

    def unused(
        self, meters: Meters, short: Collection[int], changed: Mapping[int, int]
    ) -> set[str]:
        """
        Return the limits that have room which a lane does not use: it is empty, or another
        limit holds it back now.
        """
        left = {lane for lane in self.seen if lane in short or changed.get(lane)}
        keys = {key for lane in left for key in self.seen[lane].keys}
        return {key for key in keys if key in meters.known and meters.known[key].room}

    def write(
        self, db: Session, meters: Meters, changed: Mapping[int, int], short: Collection[int]
    ) -> None:
        """
        Store when each hold is to be looked at again; the caller has locked the meters.

        A hold that is not written stays due: it has room for more lanes than were seen.
        """
        rows: dict[int, tuple[str, str, datetime | None]] = {}
        for due in self.due:
            limit = meters.known.get(due.key)
            free = [
                lane
                for lane in due.lanes
                if changed.get(lane) == 0 and lane not in short and self.seen[lane].ready
            ]
            if limit and not limit.room:
                rows[due.id] = due.queue, due.key, opens_at(limit)
            elif not due.more and changed.keys() >= set(due.lanes):
                rows[due.id] = due.queue, due.key, None
            elif limit and limit.room <= len(free):
                later = limit.moment + timedelta(seconds=RECHECK)
                rows[due.id] = due.queue, due.key, later
        for lane, held in changed.items():
            if held:
                queue = self.seen[lane].queue
                key = next(key for key in self.seen[lane].keys if hold_id(queue, key) == held)
                rows[held] = queue, key, opens_at(meters.known[key])
        if rows:
            store(db, rows)


def holding(keys: Sequence[str], known: Mapping[str, Allowance]) -> str | None:
    """Return which of these limits holds back for longest, or None where all have room."""
    shut = [(key, known[key].wait) for key in keys if key in known and not known[key].room]
    return max(shut, key=lambda one: (one[1] is None, one[1] or 0.0))[0] if shut else None


def opens_at(limit: Allowance) -> datetime | None:
    """Return when the rate of a limit without room lets the next task start, or None."""
    return None if limit.wait is None else limit.moment + timedelta(seconds=limit.wait)


def store(db: Session, holds: Mapping[int, tuple[str, str, datetime | None]]) -> None:
    values: dict[str, object] = {}
    rows = []
    for number, (id_, (queue, key, at)) in enumerate(sorted(holds.items())):
        values |= {f"q{number}": queue, f"k{number}": key}
        values[f"t{number}"] = at and db.dialect.parameter(at)
        rows.append(f"({id_}, %(q{number})s, %(k{number})s, %(t{number})s)")
    change = db.dialect.upsert("perfectqueue_hold", ["id"], {"opens_at": "{new}"})
    db.unanswered.execute(STORE, values, rows=", ".join(rows), change=change)


def open_holds(db: Session, keys: Collection[str]) -> int:
    """
    Mark what these limits hold back for the next acquire to look at; return how many holds.

    The caller has locked their meters.
    """
    return int(db.execute(OPEN, keys=sorted(keys)).rowcount)


def open_all_shut(*, using: str) -> int:
    """
    Open every hold whose limit has room; return how many.

    For limits that were edited past the models' signals, or in a transaction that has yet
    to be committed.
    """
    after: int | None = FIRST_ID
    total = 0
    while after is not None:
        after, opened = open_shut(after, using=using)
        total += opened
    return total


@retry_transaction
def open_shut(after: int, *, using: str) -> tuple[int | None, int]:
    """Open the next BATCH holds; return where to go on, or None, and how many were opened."""
    with reading(using) as db:
        rows = db.rows(SHUT, {"after": after, "limit": BATCH})
        known = allowances(db, {key for _id, key in rows})
    keys = {key for _id, key in rows if key not in known or known[key].room}
    last = rows[-1][0] if len(rows) == BATCH else None
    return last, open_again(keys, using=using) if keys else 0


@retry_transaction
def open_again(keys: Collection[str], *, using: str) -> int:
    """Mark what these limits hold back for the next acquire to look at; return how many holds."""
    with in_transaction(using) as db:
        db.rows(METERS + db.dialect.lock_clause, keys=sorted(keys))
        return open_holds(db, keys)


def shut_gates(db: Session, queues: Sequence[str]) -> set[int]:
    """
    Return the sets of limits that let no task start, by their hashes, of the first lanes that
    nothing holds back yet: nobody has looked for tasks there since they were filled.
    """
    gates = db.rows(FREE_LIMITED, {"count": LANES_PROBED}, queues=queues)
    sets = {gate: names_in(keys) for gate, keys in gates}
    known = allowances(db, {key for keys in sets.values() for key in keys})
    return {gate for gate, keys in sets.items() if holding(keys, known)}
