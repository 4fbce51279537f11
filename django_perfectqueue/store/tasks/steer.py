"""What anyone may do with a task, held or not, by its id."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue import signals
from django_perfectqueue.exceptions import AlreadyFinishedError, NotFoundError, NotSupportedError
from django_perfectqueue.models import Outcome, State

from ..arithmetic.fair_order import lane_of
from ..arithmetic.limit_keys import may_hold, split
from ..database.dialects import Dialect
from ..database.dialects.base import numbers
from ..database.transaction import Tries, reading, recalled, repeated, unit
from ..lanes.accounts import REACHED, Accounts
from ..limits.limit_cache import known_limits
from ..notify.ring import call, ring
from ..notify.signals import announce_ids
from ..records.dependency_events import Counts, note_added, note_counts, note_ended
from .after_commit import once_committed
from .close import CANCELLED, Held, bury

FIND = 'SELECT "id" FROM "perfectqueue_task" WHERE "queue" = %(queue)s AND "key" = %(key)s'
TASK = """
SELECT "queue", "key", "type", "user", "limits", "priority", "outcome", "attempt", EXISTS (
    SELECT 1 FROM "perfectqueue_dependency"
    WHERE "child_id" = "perfectqueue_task"."id" AND "state" < 3
)
FROM "perfectqueue_task" WHERE "id" = %(task_id)s
"""
TICKET = f"""
SELECT "lane", "state", "attempt", "errors", "crashes", "holder", {REACHED}
FROM "perfectqueue_ticket"
WHERE "task_id" = %(task_id)s
"""
FLAG = """
UPDATE "perfectqueue_ticket" SET "cancel_requested" = TRUE WHERE "task_id" = %(task_id)s
"""
FORCE = """
UPDATE "perfectqueue_task"
SET "outcome" = 'finished', "attempt" = %(attempt)s, "ended_at" = {now}
WHERE "id" = %(task_id)s
"""
HASTEN = """
UPDATE "perfectqueue_ticket"
SET "alarm_at" = {now}, "run_at" = COALESCE((
    SELECT "expected_at" FROM "perfectqueue_task" WHERE "id" = %(task_id)s
), {now})
WHERE "task_id" = %(task_id)s
"""
RAISE = 'DELETE FROM "perfectqueue_deadletter" WHERE "task_id" = %(task_id)s'
REOPEN = """
UPDATE "perfectqueue_task"
SET "outcome" = '', "worker" = '', "started_at" = NULL, "ended_at" = NULL, "expires_at" = NULL
WHERE "id" = %(task_id)s AND "outcome" NOT IN ('', 'finished') AND "queue" = %(queue)s
"""
REQUEUE = """
INSERT INTO "perfectqueue_ticket" (
    "task_id", "lane", "state", "rank", "run_at", "alarm_at", "attempt", "errors", "crashes",
    "cancel_requested", "followed"
)
SELECT "id", %(lane)s, %(state)s, %(rank)s, COALESCE("expected_at", {now}),
    CASE WHEN %(state)s = 1 THEN {now} END, %(attempt)s, 0, 0, FALSE, %(followed)s
FROM "perfectqueue_task" WHERE "id" = %(task_id)s
"""
FOLLOWED_BY = """
SELECT EXISTS (
    SELECT 1 FROM "perfectqueue_dependency" WHERE "parent_id" = %(task_id)s AND "state" < 3
), (SELECT "batch_id" FROM "perfectqueue_batchmember" WHERE "task_id" = %(task_id)s)
"""
# Its children wait for it anew. Written by id: by the parent it would wait for submitters.
GIVEN_UP = """
SELECT "id" FROM "perfectqueue_dependency" WHERE "parent_id" = %(task_id)s AND "state" = 2
"""
AWAIT = 'UPDATE "perfectqueue_dependency" SET "state" = 1 WHERE "id" IN ({ids})'


class TaskRow(NamedTuple):
    """What TASK selects; ``is_child`` means that it waits for other tasks."""

    queue: str
    key: str
    type: str
    user: str
    limits: str
    priority: int
    outcome: str
    attempt: int
    is_child: bool


class LockedTicket(NamedTuple):
    """What TICKET selects; ``reached`` is what REACHED says."""

    lane: int
    state: int
    attempt: int
    errors: int
    crashes: int
    holder: int | None
    reached: float | None


@repeated
def find(queue: str, key: str, *, using: str) -> int:
    """
    Return a task's id.

    Raise NotFoundError when the queue has no such key.
    """
    with reading(using) as (cursor, dialect):
        row = dialect.execute(cursor, FIND, {"queue": queue, "key": key}).fetchone()
    if row is None:
        raise NotFoundError(f"Queue '{queue}' has no task with the key '{key}'.")
    return int(row[0])


def force_finish(task_id: int, *, using: str, now: datetime | None = None) -> None:
    """
    Close a task as finished, even if it is held; the holder's next write is refused.

    In a transaction of the caller's it is done after the commit. Raise NotFoundError when
    it is gone, AlreadyFinishedError when it has ended.
    """
    act = partial(force_finish_now, task_id, using=using, now=now)
    once_committed(act, task_id, using=using)


@recalled
def force_finish_now(tries: Tries, task_id: int, *, using: str, now: datetime | None) -> None:
    with unit(using) as (cursor, dialect):
        try:
            ticket = live(cursor, dialect, task_id)
        except AlreadyFinishedError:
            if tries.doubtful and known(cursor, dialect, task_id).outcome == Outcome.FINISHED:
                return
            raise
        if followed := dialect.remove(cursor, task_id):
            note_ended(cursor, dialect, {task_id: followed}, finished=True)
        values = {"task_id": task_id, "attempt": ticket.attempt}
        dialect.execute(cursor, FORCE, values, now=now)
        drop(cursor, dialect, ticket)
        announce_ids(cursor, dialect, [(signals.task_finished, [task_id])])
        tries.commits(task_id)
    if ticket.state == State.RUNNING:
        # Its lane may have been full.
        ring(using=using)
        call(ticket.holder or 0, using=using)


def cancel_one(task_id: int, *, using: str, now: datetime | None = None) -> bool:
    """
    Cancel a task that has yet to run, or ask the one who runs it to stop, whoever waits for it.

    Return whether it is cancelled already; in a transaction of the caller's it is not, as
    that is done after the commit. Raise NotFoundError when it is gone, AlreadyFinishedError
    when it has ended.
    """
    act = partial(cancel_one_now, task_id, using=using, now=now)
    return bool(once_committed(act, task_id, using=using))


@recalled
def cancel_one_now(tries: Tries, task_id: int, *, using: str, now: datetime | None) -> bool:
    with unit(using) as (cursor, dialect):
        try:
            ticket = live(cursor, dialect, task_id)
        except AlreadyFinishedError:
            if tries.doubtful and known(cursor, dialect, task_id).outcome == Outcome.CANCELLED:
                return True
            raise
        if ticket.state == State.RUNNING:
            dialect.execute(cursor, FLAG, {"task_id": task_id})
            call(ticket.holder or 0, using=using)
            return False
        held = Held(
            task_id=task_id,
            attempt=ticket.attempt,
            errors=ticket.errors,
            crashes=ticket.crashes,
        )
        bury(cursor, dialect, held, Outcome.CANCELLED, CANCELLED, now=now)
        announce_ids(cursor, dialect, [(signals.task_cancelled, [task_id])])
        tries.commits(task_id)
        return True


def redrive(task_id: int, *, using: str, now: datetime | None = None) -> None:
    """
    Put a failed, cancelled or expired task back in its line, or hasten one that waits.

    Its counts of errors and crashes begin anew, and it expires no more. In a transaction
    of the caller's it is done after the commit. Raise NotFoundError when it is gone,
    AlreadyFinishedError when it has finished, NotSupportedError while it is waiting or
    running.
    """
    act = partial(redrive_now, task_id, using=using, now=now)
    once_committed(act, task_id, using=using, check=refuse_unfit)


def refuse_unfit(key: str, outcome: str, state: int | None) -> None:
    """Raise AlreadyFinishedError or NotSupportedError where a task can't be put back."""
    if outcome == Outcome.FINISHED:
        raise AlreadyFinishedError(f"Task '{key}' has finished.")
    if state not in (None, State.SCHEDULED):
        words = {known.value: known.name.lower() for known in State}
        raise NotSupportedError(f"Task '{key}' is {words.get(state, 'in no known state')} already.")


@recalled
def redrive_now(tries: Tries, task_id: int, *, using: str, now: datetime | None) -> None:
    try:
        with unit(using) as (cursor, dialect):
            queue = put_back(cursor, dialect, task_id, using, now)
            announce_ids(cursor, dialect, [(signals.task_put_back, [task_id])])
            tries.commits(task_id)
            ring(queue, using=using)
    except (AlreadyFinishedError, NotSupportedError):
        # It had not finished, nor was it in its line, when an earlier try put it there.
        if not tries.doubtful:
            raise


def put_back(
    cursor: Cursor, dialect: Dialect, task_id: int, using: str, now: datetime | None
) -> str:
    """Return the queue to which the task was put back."""
    task = known(cursor, dialect, task_id)
    if task.outcome == Outcome.FINISHED:
        refuse_unfit(task.key, task.outcome, None)
    values: dict[str, Any] = {"task_id": task_id}
    if not task.outcome:
        hasten(cursor, dialect, task_id, task.key, now)
        return task.queue
    dialect.execute(cursor, REOPEN, {**values, "queue": task.queue})
    if not cursor.rowcount:
        known(cursor, dialect, task_id)
        raise AlreadyFinishedError(f"Task '{task.key}' was put back or moved by someone else.")
    dialect.execute(cursor, RAISE, values)
    may = may_hold(task.queue, task.type, task.user, split(task.limits))
    keys = tuple(sorted(known_limits(may, using=using)))
    values["lane"] = lane_of(task.queue, task.user, keys)
    values |= {"rank": -task.priority, "attempt": task.attempt}
    values["state"] = (State.BLOCKED if task.is_child else State.SCHEDULED).value
    values["followed"] = followed_by(cursor, dialect, task_id)
    dialect.execute(cursor, REQUEUE, values, now=now)
    if given_up := dialect.execute(cursor, GIVEN_UP, values).fetchall():
        ids = numbers(id_ for (id_,) in given_up)
        dialect.execute(cursor, AWAIT.replace("{ids}", ids))
    if task.is_child:
        # What it waits for may end before this commit: that is looked at after it.
        note_added(cursor, dialect, [task_id])
    return task.queue


def followed_by(cursor: Cursor, dialect: Dialect, task_id: int) -> int | None:
    """Return who follows a dead task whose row is locked; it counts as dead no longer."""
    row = dialect.execute(cursor, FOLLOWED_BY, {"task_id": task_id}).fetchone()
    has_children, batch = row
    if batch:
        note_counts(cursor, dialect, {batch: Counts(dead=-1)})
    return 2 * (batch or 0) + int(has_children) or None


def hasten(cursor: Cursor, dialect: Dialect, task_id: int, key: str, now: datetime | None) -> None:
    ticket = live(cursor, dialect, task_id)
    refuse_unfit(key, "", ticket.state)
    dialect.execute(cursor, HASTEN, {"task_id": task_id}, now=now)


def known(cursor: Cursor, dialect: Dialect, task_id: int) -> TaskRow:
    """
    Return a task's row.

    Raise NotFoundError when there is none.
    """
    row = dialect.execute(cursor, TASK, {"task_id": task_id}).fetchone()
    if row is None:
        raise NotFoundError(f"There is no task with the id {task_id}.")
    return TaskRow(*row)


def live(cursor: Cursor, dialect: Dialect, task_id: int) -> LockedTicket:
    """
    Lock a task's ticket.

    Raise NotFoundError when the task is gone, AlreadyFinishedError when it has ended.
    """
    statement = TICKET + dialect.lock_clause()
    row = dialect.execute(cursor, statement, {"task_id": task_id}).fetchone()
    if row is None:
        task = known(cursor, dialect, task_id)
        raise AlreadyFinishedError(f"Task '{task.key}' has ended: it is {task.outcome}.")
    return LockedTicket(*row)


def drop(cursor: Cursor, dialect: Dialect, ticket: LockedTicket) -> None:
    """Take a running task off its lane's account."""
    if ticket.state == State.RUNNING:
        accounts = Accounts()
        accounts.lose(ticket.lane, reached=ticket.reached)
        accounts.write(cursor, dialect)
