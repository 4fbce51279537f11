"""
Fold the changes of batches' counts: of all who add or end members, the last sees that no task is
open; only then are the deltas folded into the batch's row, and its callbacks released.

Nobody waits for the row of a batch: adders share its lock, and a fold passes over it while they
do.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Set
from contextvars import ContextVar
from datetime import datetime
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from django.db import connections
from django.utils import timezone

from ..database.dialects.base import Row
from ..database.session import Session
from ..database.transaction import in_transaction, is_callers, reading, retry_transaction
from ..records.dependency_events import Counts, count_followers, note_counts
from .fold import PAUSES, Edge, Fold

SOME = 1_000
LAST = 2**63 - 1
MANY = 64
"""So many deltas of a batch are merged: who looks reads them all."""

looking: ContextVar[set[int] | None] = ContextVar("looking", default=None)
"""The batches that are still to be looked at, where that goes on already."""


class When(IntEnum):
    """What a callback waits for; it stands in ``if_failed`` of its dependency on the batch."""

    DONE = 3
    FINISHED = 4
    FAILED = 5


CHANGED = """
SELECT DISTINCT "batch_id" FROM "perfectqueue_batchdelta" WHERE "batch_id" < %(before)s
ORDER BY "batch_id" DESC LIMIT 100
"""
LOOK = """
SELECT "batch"."id", "batch"."total" - "batch"."finished" - "batch"."dead",
    COALESCE(SUM("delta"."total" - "delta"."finished" - "delta"."dead"), 0), COUNT("delta"."id")
FROM "perfectqueue_batch" AS "batch"
JOIN "perfectqueue_batchdelta" AS "delta" ON "delta"."batch_id" = "batch"."id"
WHERE "batch"."id" IN ({ids})
GROUP BY "batch"."id", "batch"."total", "batch"."finished", "batch"."dead"
"""
LOCK = """
SELECT "total", "finished", "dead", "ended_at", "parent_id"{asynchronous_commit}
FROM "perfectqueue_batch" WHERE "id" = %(batch)s
"""
THERE = 'SELECT 1 FROM "perfectqueue_batch" WHERE "id" = %(batch)s'
DELTAS = """
SELECT "id", "total", "finished", "dead" FROM "perfectqueue_batchdelta"
WHERE "batch_id" = %(batch)s
"""
WRITE = """
UPDATE "perfectqueue_batch" SET "total" = %(total)s, "finished" = %(finished)s, "dead" = %(dead)s,
    "ended_at" = {ended_at}
WHERE "id" = %(batch)s
"""
CALLBACKS = """
SELECT "id", "child_id", "parent_id", "if_failed" FROM "perfectqueue_dependency"
WHERE "parent_id" IN ({ids}) AND "state" < 3
"""


class Progress(NamedTuple):
    """
    The exact state of a batch: how many tasks it has, how many of them have finished or are dead
    (failed, cancelled or expired), and when all had ended.
    """

    total: int
    finished: int
    dead: int
    ended_at: datetime | None = None

    @property
    def open(self) -> int:
        return self.total - self.finished - self.dead

    @property
    def ended(self) -> bool:
        """Whether all its tasks have ended."""
        return self.ended_at is not None and not self.open

    @property
    def part(self) -> float:
        """The part of its tasks that have ended, from 0 to 1."""
        return 1.0 - self.open / self.total if self.total else float(self.ended)

    @property
    def counted(self) -> Counts:
        """As what it counts in the batch that it is in, of which it is one task."""
        if not self.ended:
            return Counts()
        return Counts(dead=1) if self.dead else Counts(finished=1)


def look_at_batches(batches: Set[int] | None, *, using: str, now: datetime | None = None) -> int:
    """
    Fold the deltas of those of which no task is open, and merge those of which there are many.

    With None fold all that have deltas; return how many deltas.
    """
    if batches is None:
        return sweep(using=using, now=now)
    if (later := looking.get()) is not None:
        later |= batches
        return 0
    total, left, folds = 0, set(batches), Counter[int]()
    token = looking.set(left)
    try:
        while left:
            some = set(islice(left, SOME))
            left -= some
            for batch, is_over in worth_it(some, using=using):
                if not is_over:
                    merge(batch, using=using)
                elif folds[batch] > len(PAUSES):
                    continue  # Someone holds a callback for long: the sweep finds it.
                elif (count := fold_some(batch, using=using, now=now)) is not None:
                    # Who looked meanwhile found it locked.
                    total += count
                    left.add(batch)
                    time.sleep(PAUSES[folds[batch] - 1] if folds[batch] else 0.0)
                    folds[batch] += 1
    finally:
        looking.reset(token)
    return total


count_followers.append(look_at_batches)


@retry_transaction
def worth_it(batches: Collection[int], *, using: str) -> list[tuple[int, bool]]:
    """
    Return which batches to fold, and which have deltas to be merged.

    One whose row says that none is open is folded as well: it begins, or goes on after its end.
    """
    with reading(using) as db:
        rows = db.rows(LOOK, ids=batches)
    found = [(id_, not own or own + change <= 0, count) for id_, own, change, count in rows]
    return [(id_, is_over) for id_, is_over, count in found if is_over or count >= MANY]


@retry_transaction
def merge(batch: int, *, using: str) -> None:
    """Put one delta in the place of many; adders may lock the batch's row for long."""
    with in_transaction(using) as db:
        # Shared with adders and other merges, and not with a fold: that must see all deltas.
        db.execute(THERE + db.dialect.share_clause(), {"batch": batch})
        deltas = take_deltas(db, batch)
        if deltas:
            total, finished, dead = (sum(column) for column in list(zip(*deltas, strict=True))[1:])
            note_counts(db, {batch: Counts(total, finished, dead)})


def take_deltas(db: Session, batch: int) -> list[Row]:
    """Delete the deltas of a batch that nobody else deletes; return them."""
    statement = DELTAS + db.dialect.skip_clause()
    deltas: list[Row] = db.rows(statement, {"batch": batch})
    if deltas:
        db.dialect.delete(db.cursor, "perfectqueue_batchdelta", [id_ for id_, *_counts in deltas])
    return deltas


def sweep(*, using: str, now: datetime | None) -> int:
    """Fold the deltas of all batches that nobody else has locked; return how many deltas."""
    total, before, left = 0, LAST, set[int]()
    token = looking.set(left)
    try:
        # The end of one changes the one that it is in, which is older.
        while batches := changed(before, using=using):
            for before in batches:
                if (count := fold_some(before, using=using, now=now)) is not None:
                    total += count
                    left.add(before)
    finally:
        looking.reset(token)
    # Who looked meanwhile found them locked.
    return total + look_at_batches(left, using=using, now=now)


@retry_transaction
def changed(before: int, *, using: str) -> list[int]:
    with reading(using) as db:
        rows = db.rows(CHANGED, {"before": before})
        return [batch for (batch,) in rows]


@retry_transaction
def fold_some(batch: int, *, using: str, now: datetime | None) -> int | None:
    """
    Add the deltas of a batch to its counts, and release its callbacks where it has ended.

    Return how many; None where someone else has it locked: who adds members, merges or folds
    looks after its own commit. What is lost in a crash of the server, the sweep does again.
    """
    own = not is_callers(connections[using])
    values = {"batch": batch, "parent": -batch}
    with in_transaction(using) as db:
        if own:
            db.dialect.see_commits(db.cursor)
        more = db.dialect.asynchronous_commit if own else ""
        statement = LOCK.replace("{asynchronous_commit}", more) + db.dialect.skip_clause()
        row = db.execute(statement, values).fetchone()
        if row is None and db.execute(THERE, values).fetchone():
            return None
        deltas = take_deltas(db, batch)
        if row is not None:
            *counts, ended_at, parent = row[:5]
            changes = (delta[1:] for delta in deltas)
            sums = (sum(column) for column in zip(counts, *changes, strict=True))
            before = Progress._make([*counts, ended_at])
            after = Progress._make([*sums, ended_at])
            write(db, batch, parent, before, after, now)
    return len(deltas)


def write(
    db: Session,
    batch: int,
    parent: int | None,
    before: Progress,
    after: Progress,
    now: datetime | None,
) -> None:
    # A dead task that was put back opens it again.
    over, moment = (
        ("NULL", None) if after.open else ('COALESCE("ended_at", {now})', now or timezone.now())
    )
    values = {"batch": batch, **dict(zip(("total", "finished", "dead"), after[:3], strict=True))}
    db.execute(WRITE.replace("{ended_at}", over), values, now=now)
    after = after._replace(ended_at=moment)
    old, new = before.counted, after.counted
    if parent is not None and old != new:
        note_counts(db, {parent: Counts(0, new.finished - old.finished, new.dead - old.dead)})
    if not after.open:
        release(db, batch, after, now)


def release(db: Session, batch: int, state: Progress, now: datetime | None) -> None:
    """Release the callbacks for which it is time; a batch without a dead task never failed."""
    fold = Fold(db, now)
    edges = [Edge(*row) for row in db.rows(CALLBACKS, ids=[-batch])]
    if held := fold.lock({edge.child for edge in edges}):
        # Who looks at a new callback holds it for a moment: it is for another look.
        note_counts(db, {batch: Counts()})
    for edge in edges:
        if edge.child in held:
            continue
        if edge.if_failed == When.DONE or (edge.if_failed == When.FAILED) == bool(state.dead):
            fold.met.append(edge.id)
        elif edge.if_failed == When.FAILED:
            fold.failed.append(edge.id)
            fold.cancelled[edge.child] = "All tasks of its batch have finished."
    fold.write()


def cancel_callbacks(db: Session, batches: Collection[int], now: datetime | None) -> list[int]:
    """
    Cancel what waits for batches that are to be deleted, as it can't be released any more.

    Return the batches without those of which someone else holds a callback.
    """
    fold = Fold(db, now)
    edges = [Edge(*row) for row in db.rows(CALLBACKS, ids=[-batch for batch in batches])]
    held = fold.lock({edge.child for edge in edges})
    for edge in edges:
        if edge.child not in held:
            fold.dropped.append(edge.id)
            fold.cancelled[edge.child] = "The batch for which it waited was deleted."
    fold.write()
    kept = {-edge.parent for edge in edges if edge.child in held}
    return [batch for batch in batches if batch not in kept]
