"""Give a task another queue, data or priority."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from django.db import IntegrityError

from django_perfectqueue.exceptions import (
    NotFoundError,
    NotSupportedError,
)
from django_perfectqueue.models import Change

from ..arithmetic.limit_keys import split
from ..database.session import Session
from ..database.transaction import (
    Tries,
    in_transaction,
    retry_remembering_commits,
)
from ..limits.limit_cache import lane_behind
from ..notify.ring import notify_workers
from ..records.trail import sign
from .after_commit import SeenTask, refuse
from .close import lock_tickets
from .steer import FIND, done_before
from .submit import refuse_too_long, taken

RANK = 'UPDATE "perfectqueue_ticket" SET "rank" = %(rank)s WHERE "task_id" IN ({ids})'
PRIORITY = 'UPDATE "perfectqueue_task" SET "priority" = %(priority)s WHERE "id" IN ({ids})'
ROW = """
SELECT "queue", "key", "type", "user", "limits", "outcome", "data" FROM "perfectqueue_task"
WHERE "id" = %(task_id)s
"""
WRITE = 'UPDATE "perfectqueue_task" SET "queue" = %(queue)s, "data" = %(data)s WHERE "id" = %(id)s'
# A claim that began before must not take the ticket, and with it the former data: so one that
# waits is scheduled for now, which keeps its place in line.
PLACE = """
UPDATE "perfectqueue_ticket" SET "lane" = %(lane)s,
    "timer_at" = CASE WHEN "state" = 0 THEN {now} ELSE "timer_at" END,
    "state" = CASE WHEN "state" = 0 THEN 1 ELSE "state" END
WHERE "task_id" = %(id)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """
    What is to change: the queue, unless empty, and the payload by ``rewrite``, if given.

    ``by`` is the person who does it.
    """

    queue: str = ""
    rewrite: Callable[[str], str] | None = None
    by: str = ""


class RevisedRow(NamedTuple):
    """What ROW selects."""

    queue: str
    key: str
    type: str
    user: str
    limits: str
    outcome: str
    payload: str


def revise(ids: Collection[int], revision: Revision, *, using: str) -> Collection[int]:
    """Do what revise_one() does to tasks, one after another; return them."""
    for task_id in ids:
        revise_one(task_id, revision, using=using)
    return ids


@retry_remembering_commits
def revise_one(tries: Tries, task_id: int, revision: Revision, *, using: str) -> None:
    """
    Change a task that waits, or that ended without finishing, and record who did it.

    Raise NotFoundError when it is gone, AlreadyFinishedError when it has finished,
    NotSupportedError while it is running or where it is in that queue already,
    AlreadyExistsError where its key is taken there, and what ``rewrite`` raises.
    """
    to = revision.queue
    try:
        # In a savepoint of the caller's transaction, which a key that is taken must not spoil.
        with in_transaction(using, apart=True) as db:
            row, is_live = locked(db, task_id)
            if to == row.queue:
                if tries:
                    return
                raise NotSupportedError(f"Task '{row.key}' is in queue '{to}' already.")
            names = {"queue": to, "key": row.key}
            if to and db.execute(FIND, names).fetchone():
                raise taken(to, row.key)
            write(db, task_id, row, revision)
            if is_live:
                place(db, task_id, row._replace(queue=to or row.queue), using)
            record(row, revision, using)
            tries.append(task_id)
    except IntegrityError as error:
        raise taken(to, row.key) from error
    if is_live:
        notify_workers(to or row.queue, using=using)


def locked(db: Session, task_id: int) -> tuple[RevisedRow, bool]:
    """Lock a task, and return its row and whether it has a ticket; raise what revise() does."""
    states = [ticket.state for ticket in lock_tickets(db, [task_id])]
    state = states[0] if states else None
    statement = ROW + db.dialect.lock_clause
    found = db.execute(statement, {"task_id": task_id}).fetchone()
    if found is None:
        raise NotFoundError(f"There is no task with the id {task_id}.")
    row = RevisedRow(*found)
    refuse(SeenTask(row.key, row.outcome, state), "revise")
    if state is None and not row.outcome:
        raise NotSupportedError(f"Task '{row.key}' was put back in line by someone else.")
    return row, state is not None


def write(db: Session, task_id: int, row: RevisedRow, revision: Revision) -> None:
    payload = revision.rewrite(row.payload) if revision.rewrite else row.payload
    refuse_too_long(db, row.key, payload)
    values = {"id": task_id, "queue": revision.queue or row.queue, "data": payload}
    db.execute(WRITE, values)


def place(db: Session, task_id: int, row: RevisedRow, using: str) -> None:
    """Put its ticket in the lane of its queue."""
    lane = lane_behind(row.queue, row.type, row.user, split(row.limits), using=using)
    values = {"id": task_id, "lane": lane}
    db.execute(PLACE, values)


def record(row: RevisedRow, revision: Revision, using: str) -> None:
    """Record who did it, where its queue is now; what was recorded before goes along."""
    queue = revision.queue or row.queue
    if queue != row.queue:
        former = Change.objects.using(using).filter(kind=Change.Kind.TASK, name=row.key)
        former.filter(queue=row.queue).update(queue=queue)
    names = [(queue, row.key)]
    if revision.queue:
        sign(names, "moved", by=revision.by, using=using, more={"from": row.queue})
    if revision.rewrite:
        sign(names, "edited", by=revision.by, using=using)


@retry_remembering_commits
def set_priority(tries: Tries, ids: Collection[int], priority: int, *, using: str) -> set[int]:
    """
    Give tasks that have yet to end another priority, and with it another place in their lines;
    return which.

    Those that are running go on; the priority holds if they are tried again.
    """
    with in_transaction(using) as db:
        done = {ticket.task_id for ticket in lock_tickets(db, ids)}
        if done:
            db.execute(RANK, {"rank": -priority}, ids=done)
            db.execute(PRIORITY, {"priority": priority}, ids=done)
        # What an earlier try has changed may have ended since.
        done |= done_before(db, tries, set(ids) - done, "priority", priority)
        tries.append(done)
    return done
