"""
Batches: who adds or ends members appends deltas of the counts, and looks after the commit.

A callback is a blocked task that depends on the batch, by minus the batch's id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    BatchEndedError,
    InvalidTaskError,
    NotFoundError,
)

from ..database.session import Session
from ..database.transaction import (
    Tries,
    in_transaction,
    reading,
    retry_remembering_commits,
    retry_transaction,
    together,
)
from ..records.dependency_events import Counts, note_counts
from ..values import Submission
from .batch_fold import State, cancel_callbacks
from .submit import CHILDREN, reached

CREATE = """
"perfectqueue_batch" ("queue", "name", "user", "parent_id", "total", "finished", "dead", "stopped",
    "created_at")
VALUES (%(queue)s, %(name)s, %(user)s, %(parent)s, 0, 0, 0, FALSE, {now})
"""
FIND = """
SELECT "id" FROM "perfectqueue_batch" WHERE "queue" = %(queue)s AND "name" = %(name)s
"""
OPEN = 'SELECT "ended_at", "stopped", "name" FROM "perfectqueue_batch" WHERE "id" = %(batch)s'
OUTER = 'SELECT "parent_id" FROM "perfectqueue_batch" WHERE "id" = %(batch)s'
JOIN = 'INSERT INTO "perfectqueue_batchmember" ("task_id", "batch_id") VALUES {rows}'
MARK = """
UPDATE "perfectqueue_ticket"{hint} SET "followed" = COALESCE("followed", 0) + %(mark)s
WHERE "task_id" IN ({ids})
"""
PROGRESS = """
SELECT "total" + COALESCE(SUM("delta_total"), 0), "finished" + COALESCE(SUM("delta_finished"), 0),
    "dead" + COALESCE(SUM("delta_dead"), 0), "ended_at", "stopped"
FROM "perfectqueue_batch" LEFT JOIN (
    SELECT "batch_id", "total" AS "delta_total", "finished" AS "delta_finished",
        "dead" AS "delta_dead"
    FROM "perfectqueue_batchdelta" WHERE "batch_id" = %(batch)s
) AS "delta" ON "delta"."batch_id" = "id"
WHERE "id" = %(batch)s GROUP BY "id", "total", "finished", "dead", "ended_at", "stopped"
"""
OVER = """
SELECT "id" FROM "perfectqueue_batch" AS "batch" WHERE "ended_at" <= {before} AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_batchmember" WHERE "batch_id" = "batch"."id"
) AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_batch" AS "inner" WHERE "inner"."parent_id" = "batch"."id"
) ORDER BY "id" LIMIT 1000
"""
LOCK = 'SELECT "id" FROM "perfectqueue_batch" WHERE "id" IN ({ids}) ORDER BY "id"'
FORGET = 'DELETE FROM "perfectqueue_batch" WHERE "id" IN ({ids})'
STOP = 'UPDATE "perfectqueue_batch" SET "stopped" = TRUE WHERE "id" = %(batch)s'


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
        if db.execute(FIND, values).fetchone():
            raise AlreadyExistsError(f"Queue '{queue}' already has a batch called '{name}'.")
        db.execute(f"INSERT INTO {CREATE}", values, now=now)
        batch = int(db.execute(FIND, values).fetchone()[0])
        # It ends though nothing is added: this has it looked at.
        note_counts(db, {batch: Counts()})
        if parent is not None:
            note_counts(db, {parent: Counts(total=1)})
    return batch


def refuse_ended_batch(db: Session, batch: int) -> None:
    """Keep a batch from ending before the commit; raise BatchEndedError where it has."""
    statement = OPEN + db.dialect.share_clause()
    row = db.execute(statement, {"batch": batch}).fetchone()
    if row is None:
        raise NotFoundError(f"There is no batch with the id {batch}.")
    ended_at, stopped, name = row
    if ended_at or stopped:
        raise BatchEndedError(
            f"Batch '{name}' {'has ended' if ended_at else 'was cancelled'}: nothing can be added."
        )


@retry_remembering_commits
def submit_joining(
    tries: Tries,
    submit: Callable[..., dict[tuple[str, str], int]],
    submissions: Sequence[Submission],
    batch: int,
    *,
    using: str,
    now: datetime | None = None,
) -> dict[tuple[str, str], int]:
    """
    Store tasks by ``submit`` as members of a batch, all in one transaction or savepoint.

    Raise BatchEndedError where the batch has ended or was cancelled, InvalidTaskError where one
    of the tasks waits for its end.
    """
    for fresh in tries.doubtful:
        if fresh and is_member(next(iter(fresh.values())), using=using):
            return fresh  # type: ignore[no-any-return]
    with together(using=using), reading(using) as db:
        refuse_ended_batch(db, batch)
        fresh = submit(submissions, using=using, now=now)
        if len(fresh) == len(submissions):
            ids = sorted(fresh.values())
            if any(task.after for task in submissions):
                refuse_circle(db, batch, ids)
            rows = ", ".join(f"({task_id}, {batch})" for task_id in ids)
            db.execute(JOIN.replace("{rows}", rows))
            mark = MARK.replace("{hint}", db.dialect.by_primary_key)
            db.execute(mark, {"mark": 2 * batch}, ids=ids)
            note_counts(db, {batch: Counts(total=len(ids))})
        tries.commits(fresh)
    return fresh


def refuse_circle(db: Session, batch: int | None, ids: Sequence[int]) -> None:
    """Raise InvalidTaskError where one of these waits for a batch or one that it is in."""
    outer = set[int]()
    while batch is not None:
        outer.add(-batch)
        (batch,) = db.execute(OUTER, {"batch": batch}).fetchone()
    if not reached(db, CHILDREN, outer).isdisjoint(ids):
        raise InvalidTaskError("A task of a batch would wait for a callback of that batch.")


@retry_transaction
def is_member(task_id: int, *, using: str) -> bool:
    with reading(using) as db:
        statement = 'SELECT 1 FROM "perfectqueue_batchmember" WHERE "task_id" = %(task_id)s'
        return db.execute(statement, {"task_id": task_id}).fetchone() is not None


@retry_transaction
def batch_state(batch: int, *, using: str) -> State:
    """Return the exact state of a batch; raise NotFoundError where it is gone."""
    with reading(using) as db:
        row = db.execute(PROGRESS, {"batch": batch}).fetchone()
        if row is None:
            raise NotFoundError(f"There is no batch with the id {batch}.")
        total, finished, dead, ended_at, stopped = row
        moment = ended_at and db.dialect.moment(ended_at)
        return State(int(total), int(finished), int(dead), moment, bool(stopped))


@retry_transaction
def forget_batches(keep: float, *, using: str, now: datetime | None = None) -> int:
    """
    Delete batches that ended so many seconds ago and of which no task is left, and cancel the
    callbacks that still wait for one; return their number.
    """
    with in_transaction(using) as db:
        over = [id_ for (id_,) in db.rows(OVER, now=now, after={"before": -keep})]
        if not over:
            return 0
        # Who submits a callback shares the lock until the commit.
        rows = db.rows(LOCK + db.dialect.skip_clause(), ids=over)
        gone = cancel_callbacks(db, [id_ for (id_,) in rows], now) if rows else []
        if gone:
            db.execute(FORGET, ids=gone)
    return len(gone)


@retry_transaction
def stop_batch(batch: int, *, using: str) -> None:
    """Take no more tasks into a batch."""
    with in_transaction(using) as db:
        db.execute(STOP, {"batch": batch})


@retry_transaction
def look_at_batch(batch: int, *, using: str) -> None:
    """
    Have the callbacks of a batch looked at, after the caller's commit; raise NotFoundError where
    it is gone.
    """
    with in_transaction(using) as db:
        if not db.execute(OPEN + db.dialect.share_clause(), {"batch": batch}).fetchone():
            raise NotFoundError(f"There is no batch with the id {batch}.")
        note_counts(db, {batch: Counts()})
