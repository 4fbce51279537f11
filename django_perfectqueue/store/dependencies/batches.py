"""
Batches: who adds or ends members appends deltas of the counts, and looks after the commit.

A callback is a blocked task whose parent is the batch, by minus the batch's id.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    BatchEndedError,
    NotFoundError,
)

from ..database.session import Session
from ..database.transaction import in_transaction, reading, retry_transaction
from ..records.dependency_events import MemberCounts, note_counts, note_gone
from .batch_counts import Progress, share

CREATE = """
INSERT INTO "perfectqueue_batch" (
    "queue", "name", "user", "parent_id", "total", "finished", "dead", "stopped", "created_at"
) VALUES (%(queue)s, %(name)s, %(user)s, %(parent)s, 0, 0, 0, FALSE, {now})
"""
PROGRESS = """
SELECT "total" + COALESCE(SUM("delta_total"), 0), "finished" + COALESCE(SUM("delta_finished"), 0),
    "dead" + COALESCE(SUM("delta_dead"), 0), "ended_at"
FROM "perfectqueue_batch" LEFT JOIN (
    SELECT "batch_id", "total" AS "delta_total", "finished" AS "delta_finished",
        "dead" AS "delta_dead"
    FROM "perfectqueue_batchdelta" WHERE "batch_id" = %(batch)s
) AS "delta" ON "delta"."batch_id" = "id"
WHERE "id" = %(batch)s GROUP BY "id", "total", "finished", "dead", "ended_at"
"""
EMPTY = """
SELECT "id" FROM "perfectqueue_batch" AS "batch" WHERE NOT EXISTS (
    SELECT 1 FROM "perfectqueue_batchmember" WHERE "batch_id" = "batch"."id"
) AND {which} ORDER BY "id" LIMIT 1000
"""
# The results of a batch are counted by the batches in it: these are kept until it has no task.
OVER = """"ended_at" <= {before} AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_batch" AS "inner" WHERE "inner"."parent_id" = "batch"."id"
) AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_batch" AS "outer" WHERE "outer"."id" = "batch"."parent_id" AND (
        "outer"."ended_at" IS NULL OR EXISTS (
            SELECT 1 FROM "perfectqueue_batchmember" WHERE "batch_id" = "outer"."id"
        )
    )
)"""
LOCK = 'SELECT "id" FROM "perfectqueue_batch" WHERE "id" IN ({ids}) ORDER BY "id"'
FORGET = (
    'DELETE FROM "perfectqueue_batch" WHERE "id" IN ({ids})',
    'DELETE FROM "perfectqueue_batchdelta" WHERE "batch_id" IN ({ids})',
)
STOP = """
UPDATE "perfectqueue_batch" SET "stopped" = {stopped}
WHERE "id" IN ({ids}) AND "stopped" <> {stopped}
"""


@retry_transaction
def create_batch(
    queue: str, name: str, user: str, parent: int | None, *, using: str, now: datetime | None = None
) -> int:
    """
    Store a batch in the caller's transaction; return its id.

    Raise AlreadyExistsError where the queue has one of this name, BatchEndedError where the one
    that it is to be in has ended.
    """
    values = {"queue": queue, "name": name, "user": user, "parent": parent}
    with in_transaction(using) as db:
        if parent is not None:
            refuse_ended_batch(db, parent)
        batch = db.dialect.insert_new(db.cursor, CREATE, values, now)
        if batch is None:
            raise AlreadyExistsError(f"Queue '{queue}' already has a batch called '{name}'.")
        # It ends though nothing is added: this has it looked at.
        outer = {} if parent is None else {parent: MemberCounts(total=1)}
        note_counts(db, {batch: MemberCounts(), **outer})
    return batch


def refuse_ended_batch(db: Session, batch: int) -> None:
    """Keep a batch from ending before the commit; raise BatchEndedError where it has."""
    ended_at, stopped, name = share(db, batch)
    # One whose dead task was put back goes on, though this may have yet to be folded.
    if stopped or (ended_at and exact_progress(db, batch).ended):
        raise BatchEndedError(
            f"Batch '{name}' {'has ended' if ended_at else 'was cancelled'}: nothing can be added."
        )


@retry_transaction
def batch_progress(batch: int, *, using: str) -> Progress:
    """Return the exact state of a batch; raise NotFoundError where it is gone."""
    with reading(using) as db:
        return exact_progress(db, batch)


def exact_progress(db: Session, batch: int) -> Progress:
    row = db.execute(PROGRESS, {"batch": batch}).fetchone()
    if row is None:
        raise NotFoundError(f"There is no batch with the id {batch}.")
    total, finished, dead, ended_at = row
    moment = ended_at and db.dialect.moment(ended_at)
    return Progress(int(total), int(finished), int(dead), moment)


@retry_transaction
def forget_batches(
    keep: float | None, *, using: str, queue: str = "", now: datetime | None = None
) -> int:
    """
    Delete batches, of a queue or of all, of which no task is left and that ended so many seconds
    ago, or with None have yet to end, too. What still waits for one is cancelled after the commit.

    Return how many of some.
    """
    which = "TRUE" if keep is None else OVER
    which += ' AND "queue" = %(queue)s' if queue else ""
    since = {"before": keep and -keep}
    with in_transaction(using) as db:
        empty = EMPTY.replace("{which}", which)
        over = [id_ for (id_,) in db.rows(empty, {"queue": queue}, now=now, after=since)]
        if not over:
            return 0
        # Who submits a callback shares the lock until the commit.
        gone = [id_ for (id_,) in db.rows(LOCK + db.dialect.skip_clause, ids=over)]
        for statement in FORGET if gone else ():
            db.execute(statement, ids=gone)
        if gone:
            note_gone(db, [-id_ for id_ in gone])
    return len(gone)


@retry_transaction
def stop_batches(ids: Collection[int], *, using: str, stopped: bool = True) -> None:
    """Take no more tasks into batches; or, not ``stopped``, take some again."""
    with in_transaction(using) as db:
        db.execute(STOP.replace("{stopped}", str(stopped).upper()), ids=ids)
