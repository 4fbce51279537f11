"""
Batches, and the counts of their members: appended as deltas, looked at after the commit.

A callback is a blocked task whose parent is the batch, by minus the batch's id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Set
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import product
from typing import Any, NamedTuple

from django.db.models import Exists, FloatField, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Cast, Coalesce
from django.utils import timezone

from django_perfectqueue.exceptions import AlreadyExistsError, BatchEndedError, NotFoundError
from django_perfectqueue.models import JOINED, Batch, BatchDelta, BatchMember, Outcome
from django_perfectqueue.models.fields import ServerNow

from ..database.dialects.base import Row
from ..database.transaction import Session, in_transaction, reading, retry_transaction
from ..records.dependency_events import MemberCounts, note_counts, note_gone
from ..values import Now
from .graph import GONE, LOCKED, ParentState

CREATE = """
INSERT INTO "perfectqueue_batch" (
    "queue", "name", "user", "parent_id", "total", "finished", "dead", "stopped", "created_at"
) VALUES (%(queue)s, %(name)s, %(user)s, %(parent)s, 0, 0, 0, FALSE, {now})
"""


class When(IntEnum):
    """
    What a callback waits for; it stands in ``if_failed`` of its dependency on the batch. JOINED
    are those that a task has run, or joins.
    """

    DONE = 3
    FINISHED = 4
    FAILED = 5
    FIRST_FAILURE = 6
    JOINED = JOINED


COUNTS = ("total", "finished", "dead")
AT_ONCE = 1_000
MEMBERS = BatchMember.objects.filter(batch_id=OuterRef("pk"))


@retry_transaction
def create_batch(queue: str, name: str, user: str, parent: int | None, *, using: str) -> int:
    """
    Store a batch in the caller's transaction; return its id.

    Raise AlreadyExistsError where the queue has one of this name, BatchEndedError where the one
    that it is to be in has ended.
    """
    values = {"queue": queue, "name": name, "user": user, "parent": parent}
    with in_transaction(using) as db:
        if parent is not None:
            refuse_ended_batch(db, parent)
        batch = db.dialect.insert_new(db.cursor, CREATE, values, None)
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
    if stopped or (ended_at and batch_progress(batch, using=db.using).ended):
        raise BatchEndedError(
            f"Batch '{name}' {'has ended' if ended_at else 'was cancelled'}: nothing can be added."
        )


@retry_transaction
def batch_progress(batch: int, *, using: str) -> Progress:
    """Return the exact state of a batch; raise NotFoundError where it is gone."""
    for row in exact(summed(Batch.objects.using(using).filter(pk=batch))):
        return Progress(row.total, row.finished, row.dead, row.ended_at)
    raise NotFoundError(f"There is no batch with the id {batch}.")


def summed(rows: QuerySet[Batch]) -> QuerySet[Batch]:
    """Return batches with the sums of what has yet to be folded, for exact()."""
    deltas: Any = BatchDelta.objects.filter(batch_id=OuterRef("pk")).order_by().values("batch_id")
    # As floats, since SQLite fails where a sum of integers is too large for one.
    sums = {
        name: deltas.annotate(found=Sum(Cast(name, FloatField()))).values("found")
        for name in COUNTS
    }
    return rows.annotate(**{f"sum_{name}": Subquery(found) for name, found in sums.items()})


def exact(rows: Iterable[Any]) -> list[Any]:
    """Return summed() batches with these sums added to their counts."""
    found = list(rows)
    for batch, name in product(found, COUNTS):
        setattr(batch, name, getattr(batch, name) + int(getattr(batch, f"sum_{name}") or 0))
    return found


@retry_transaction
def forget_batches(keep: float | None, *, using: str, queue: str = "", now: Now = None) -> int:
    """
    Delete batches, of a queue or of all, of which no task is left and that ended so many seconds
    ago, or with None have yet to end, too. What still waits for one is cancelled after the commit.

    Return how many of some.
    """
    rows = Batch.objects.using(using)
    idle = rows.filter(~Exists(MEMBERS), **({"queue": queue} if queue else {}))
    if keep is not None:
        # The results of a batch are counted by the batches in it: these stay while it has tasks.
        inner = Batch.objects.filter(parent_id=OuterRef("pk"))
        outer = Batch.objects.filter(Q(ended_at=None) | Exists(MEMBERS), pk=OuterRef("parent_id"))
        before = (now or ServerNow()) - timedelta(seconds=keep)
        idle = idle.filter(~Exists(inner), ~Exists(outer), ended_at__lte=before)
    with in_transaction(using) as db:
        ids = list(idle.order_by("pk").values_list("pk", flat=True)[:AT_ONCE])
        # Who submits a callback shares the lock until the commit.
        held = rows.filter(pk__in=ids).order_by("pk").select_for_update(skip_locked=True)
        if gone := list(held.values_list("pk", flat=True)):
            rows.filter(pk__in=gone).delete()
            BatchDelta.objects.using(using).filter(batch_id__in=gone).delete()
            note_gone(db, [-id_ for id_ in gone])
    return len(gone)


@retry_transaction
def stop_batches(ids: Collection[int], *, using: str, stopped: bool = True) -> None:
    """Take no more tasks into batches; or, not ``stopped``, take some again."""
    Batch.objects.using(using).filter(pk__in=ids).update(stopped=stopped)


# Count the tasks of batches: of all who add or end members, the last sees that no task is open;
# only then, or where there are many, are the deltas added to the batch's row.  Nobody waits for
# the row of a batch: adders share its lock, and who counts passes over it while they do.


# So many deltas of a batch are counted though it goes on: who looks reads them all.
MANY = 64

WORTH_IT = """
SELECT "delta"."batch_id" FROM "perfectqueue_batchdelta" AS "delta"
JOIN "perfectqueue_batch" AS "batch" ON "batch"."id" = "delta"."batch_id"
WHERE "delta"."batch_id" IN ({ids})
GROUP BY "delta"."batch_id", "batch"."total", "batch"."finished", "batch"."dead", "batch"."ended_at"
HAVING "batch"."ended_at" IS NOT NULL OR COUNT(*) >= %(many)s
    OR "batch"."total" - "batch"."finished" - "batch"."dead"
        + SUM("delta"."total" - "delta"."finished" - "delta"."dead") <= 0
    OR ("batch"."dead" + SUM("delta"."dead") > 0 AND EXISTS (
        SELECT 1 FROM "perfectqueue_dependency" AS "first"
        WHERE "first"."parent_id" = -"delta"."batch_id" AND "first"."state" < 3
        AND "first"."if_failed" = %(first)s
    ))
"""
LOCK_COUNTS = """
SELECT "id", "total", "finished", "dead", "ended_at", "parent_id" FROM "perfectqueue_batch"
WHERE "id" IN ({ids}) ORDER BY "id"
"""
SHARE = 'SELECT "ended_at", "stopped", "name" FROM "perfectqueue_batch" WHERE "id" = %(batch)s'
DELTAS = """
SELECT "id", "batch_id", "total", "finished", "dead" FROM "perfectqueue_batchdelta"
WHERE "batch_id" IN ({ids})
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


@retry_transaction
def batches_to_count(batches: Collection[int] | None, *, using: str) -> list[int]:
    """
    Return which batches are to be counted: no task is open, or there are many deltas, or some
    have died and a callback waits for the first death.

    One that had ended is counted as well, as it goes on; with None all that have deltas.
    """
    if batches is None:
        changed = BatchDelta.objects.using(using).values_list("batch_id", flat=True)
        return list(changed.distinct())
    with reading(using) as db:
        values = {"many": MANY, "first": When.FIRST_FAILURE.value}
        return [batch for (batch,) in db.rows(WORTH_IT, values, ids=batches)]


def share(db: Session, batch: int) -> tuple[datetime | None, bool, str]:
    """
    Keep a batch as it is until the commit; raise NotFoundError where it is gone.

    Return when it ended, whether it is stopped, and its name.
    """
    row = db.execute(SHARE + db.dialect.share_clause, {"batch": batch}).fetchone()
    if row is None:
        raise NotFoundError(f"There is no batch with the id {batch}.")
    ended_at, stopped, name = row
    return ended_at, stopped, name


def count(db: Session, batches: Set[int]) -> tuple[dict[int, ParentState], int]:
    """
    Add the deltas of batches to their counts; return where each batch stands, by minus its id,
    and how many deltas there were.

    One that others hold is LOCKED: who adds members or counts looks after the commit.
    """
    if not batches:
        return {}, 0
    rows = db.rows(LOCK_COUNTS + db.dialect.skip_clause, ids=batches)
    left = batches - {row[0] for row in rows}
    there = Batch.objects.using(db.using).filter(pk__in=left)
    held = set(there.values_list("pk", flat=True))
    standing = {-id_: LOCKED if id_ in held else GONE for id_ in left}
    deltas = take_deltas(db, batches - held)
    changes: defaultdict[int, list[list[int]]] = defaultdict(list)
    for _id, batch, *change in deltas:
        changes[batch].append(change)
    outers: defaultdict[int, MemberCounts] = defaultdict(MemberCounts)
    for id_, *counts, ended_at, outer in rows:
        before = after = Progress._make([*counts, ended_at])
        if changes[id_]:
            sums = [sum(column) for column in zip(counts, *changes[id_], strict=True)]
            after = write(db, id_, Progress._make([*sums, ended_at]))
        standing[-id_] = ParentState(outcome_of(after), some_died=after.dead > 0)
        if outer is not None and outcome_of(before) != outcome_of(after):
            # In the batch around it, it is one task.
            for state, sign in ((before, -1), (after, 1)):
                outers[outer].finished += sign * (outcome_of(state) == Outcome.FINISHED)
                outers[outer].dead += sign * (outcome_of(state) == Outcome.FAILED)
    note_counts(db, outers)
    return standing, len(deltas)


def take_deltas(db: Session, batches: Collection[int]) -> list[Row]:
    """Delete the deltas of batches that are locked, or gone; return them."""
    # Under the lock nobody else deletes one, and all must be seen. Where a SELECT would see those
    # of before, what others are about to commit is not waited for.
    old = db.dialect.current_clause(db.cursor)
    deltas = db.rows(DELTAS + (db.dialect.skip_clause if old else ""), ids=batches)
    if deltas:
        db.dialect.delete(db.cursor, "perfectqueue_batchdelta", [row[0] for row in deltas])
    return deltas


def write(db: Session, batch: int, state: Progress) -> Progress:
    """Write the counts of a batch, and when it ended; return its state."""
    # A dead task that was put back opens it again.
    over = None if state.open else Coalesce("ended_at", Value(db.now) if db.now else ServerNow())
    row = Batch.objects.using(db.using).filter(pk=batch)
    row.update(**state._asdict() | {"ended_at": over})
    return state._replace(ended_at=None if state.open else db.now or timezone.now())


def outcome_of(state: Progress) -> str:
    """Return the outcome of a batch as that of a task; it is empty while it goes on."""
    if not state.ended:
        return ""
    return (Outcome.FAILED if state.dead else Outcome.FINISHED).value
