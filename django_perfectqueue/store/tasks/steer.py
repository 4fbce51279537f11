"""What anyone may do with a task, held or not, by its id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from django_perfectqueue import signals
from django_perfectqueue.exceptions import AlreadyFinishedError, NotFoundError, NotSupportedError
from django_perfectqueue.models import Outcome, State

from ..arithmetic.limit_keys import split
from ..database.session import Session
from ..database.transaction import (
    Tries,
    in_transaction,
    reading,
    retry_remembering_commits,
    retry_transaction,
)
from ..lanes.accounts import REACHED, Accounts
from ..lanes.wake import wake_sleeping
from ..limits.limit_cache import lane_behind
from ..notify.ring import call, ring
from ..notify.signals import announce_ids
from ..records.dependency_events import Counts, note, note_counts, note_ended
from .after_commit import after_callers_commit, is_put_off
from .close import CANCELLED, EndedAttempt, bury, cases

CHUNK = 1_000
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
TICKETS = """
SELECT "task_id", "state", "attempt", "errors", "crashes", "holder" FROM "perfectqueue_ticket"{hint}
WHERE "task_id" IN ({ids}) ORDER BY "task_id"
"""
FLAG = """
UPDATE "perfectqueue_ticket"{hint} SET "cancel_requested" = TRUE WHERE "task_id" IN ({ids})
"""
CANCELLED_ONES = """
SELECT "id" FROM "perfectqueue_task" WHERE "id" IN ({ids}) AND "outcome" = 'cancelled'
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
DEAD = """
SELECT "id", "queue", "type", "user", "limits" FROM "perfectqueue_task"
WHERE "id" IN ({ids}) AND "outcome" NOT IN ('', 'finished') ORDER BY "id"
"""
REOPEN = """
UPDATE "perfectqueue_task"
SET "outcome" = '', "worker" = '', "started_at" = NULL, "ended_at" = NULL, "expires_at" = NULL
WHERE "id" IN ({ids})
"""
REQUEUE = """
INSERT INTO "perfectqueue_ticket" (
    "task_id", "lane", "state", "rank", "run_at", "alarm_at", "attempt", "errors", "crashes",
    "cancel_requested", "followed"
)
SELECT "id", CASE "id" {lanes} END, CASE WHEN "id" IN ({children}) THEN 3 ELSE 0 END,
    -"priority", COALESCE("expected_at", {now}), NULL, "attempt", 0, 0, FALSE, {followed}
FROM "perfectqueue_task" WHERE "id" IN ({ids})
"""
FAMILY = """
SELECT "id", EXISTS (
    SELECT 1 FROM "perfectqueue_dependency"
    WHERE "child_id" = "perfectqueue_task"."id" AND "state" < 3
), EXISTS (
    SELECT 1 FROM "perfectqueue_dependency"
    WHERE "parent_id" = "perfectqueue_task"."id" AND "state" < 3
), (
    SELECT "batch_id" FROM "perfectqueue_batchmember"
    WHERE "task_id" = "perfectqueue_task"."id"
)
FROM "perfectqueue_task" WHERE "id" IN ({ids})
"""
# Its children wait for it anew. Written by id: by the parent it would wait for submitters.
GIVEN_UP = """
SELECT "id" FROM "perfectqueue_dependency" WHERE "parent_id" IN ({ids}) AND "state" = 2
"""
CLOSES = """
SELECT DISTINCT "parent_id" FROM "perfectqueue_dependency"
WHERE "child_id" IN ({ids}) AND "parent_id" < 0 AND "state" < 3
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


@retry_transaction
def find(queue: str, key: str, *, using: str) -> int:
    """
    Return a task's id.

    Raise NotFoundError when the queue has no such key.
    """
    with reading(using) as db:
        row = db.execute(FIND, {"queue": queue, "key": key}).fetchone()
    if row is None:
        raise NotFoundError(f"Queue '{queue}' has no task with the key '{key}'.")
    return int(row[0])


@after_callers_commit
@retry_remembering_commits
def force_finish(tries: Tries, task_id: int, *, using: str, now: datetime | None = None) -> None:
    """
    Close a task as finished, even if it is held; the holder's next write is refused.

    In a transaction of the caller's it is done after the commit. Raise NotFoundError when
    it is gone, AlreadyFinishedError when it has ended.
    """
    with in_transaction(using) as db:
        try:
            ticket = live(db, task_id)
        except AlreadyFinishedError:
            if tries.doubtful and known(db, task_id).outcome == Outcome.FINISHED:
                return
            raise
        if followed := db.dialect.remove(db.cursor, [task_id]):
            note_ended(db, followed, finished=True)
        values = {"task_id": task_id, "attempt": ticket.attempt}
        db.execute(FORCE, values, now=now)
        drop(db, ticket)
        announce_ids(db, [(signals.task_finished, [task_id])])
        tries.commits(task_id)
    if ticket.state == State.RUNNING:
        # Its lane may have been full.
        ring(using=using)
        call(ticket.holder or 0, using=using)


@retry_remembering_commits
def cancel_now(
    tries: Tries, ids: Collection[int], *, using: str, now: datetime | None = None
) -> dict[int, bool]:
    """
    Cancel tasks that have yet to run, and ask the holders of others to stop, in one
    transaction; tasks that wait for them stay.

    Return of each whether it is cancelled already. Those are left out that have ended.
    """
    done: dict[int, bool] = {}
    with in_transaction(using) as db:
        statement = TICKETS.replace("{hint}", db.dialect.by_primary_key) + db.dialect.lock_clause()
        held, holders = [], set()
        for task_id, state, attempt, errors, crashes, holder in db.rows(statement, ids=ids):
            done[task_id] = state != State.RUNNING
            if done[task_id]:
                held.append(EndedAttempt(task_id, attempt, errors, crashes))
            else:
                holders.add(holder or 0)
        if holders:
            flag = FLAG.replace("{hint}", db.dialect.by_primary_key)
            db.execute(flag, ids=[task_id for task_id, is_over in done.items() if not is_over])
        for holder in holders:
            call(holder, using=using)
        bury(db, held, Outcome.CANCELLED, CANCELLED, now=now)
        announce_ids(db, [(signals.task_cancelled, [one.task_id for one in held])])
        # What an earlier try has cancelled has no ticket any more.
        tried = {task_id for note in tries.doubtful for task_id in note if task_id not in done}
        if tried:
            done |= {task_id: True for (task_id,) in db.rows(CANCELLED_ONES, ids=tried)}
        tries.commits([one.task_id for one in held])
    return done


def cancel_each(ids: Sequence[int], *, using: str, now: datetime | None = None) -> dict[int, bool]:
    """
    Do what cancel_now() does, a chunk at a time. In a transaction of the caller's that is done
    after the commit, and none is cancelled yet.
    """
    act = partial(cancel_in_chunks, ids, using=using, now=now)
    return dict.fromkeys(ids, False) if is_put_off(act, using=using) else act()


def cancel_in_chunks(ids: Sequence[int], *, using: str, now: datetime | None) -> dict[int, bool]:
    done: dict[int, bool] = {}
    for start in range(0, len(ids), CHUNK):
        done |= cancel_now(ids[start : start + CHUNK], using=using, now=now)
    return done


def refuse_unfit(key: str, outcome: str, state: int | None) -> None:
    """Raise AlreadyFinishedError or NotSupportedError where a task can't be put back."""
    if outcome == Outcome.FINISHED:
        raise AlreadyFinishedError(f"Task '{key}' has finished.")
    if state not in (None, State.SCHEDULED):
        words = {known.value: known.name.lower() for known in State}
        raise NotSupportedError(f"Task '{key}' is {words.get(state, 'in no known state')} already.")


@partial(after_callers_commit, check=refuse_unfit)
@retry_remembering_commits
def retry_ended(tries: Tries, task_id: int, *, using: str, now: datetime | None = None) -> None:
    """
    Put a failed, cancelled or expired task back in its line, or hasten one that waits.

    Its counts of errors and crashes begin anew, and it expires no more. In a transaction
    of the caller's it is done after the commit. Raise NotFoundError when it is gone,
    AlreadyFinishedError when it has finished, NotSupportedError while it is waiting or
    running.
    """
    try:
        with in_transaction(using) as db:
            retry_or_hasten(db, task_id, using, now)
            announce_ids(db, [(signals.task_put_back, [task_id])])
            tries.commits(task_id)
    except (AlreadyFinishedError, NotSupportedError):
        # It had not finished, nor was it in its line, when an earlier try put it there.
        if not tries.doubtful:
            raise


def retry_or_hasten(db: Session, task_id: int, using: str, now: datetime | None) -> None:
    task = known(db, task_id)
    if task.outcome == Outcome.FINISHED:
        refuse_unfit(task.key, task.outcome, None)
    if not task.outcome:
        hasten(db, task_id, task.key, now)
        ring(task.queue, using=using)
        return
    back = retry_dead(db, [task_id], using, now)
    if not back:
        known(db, task_id)
        raise AlreadyFinishedError(f"Task '{task.key}' was put back by someone else.")


def retry_all_ended(ids: Collection[int], *, using: str) -> set[int]:
    """
    Put tasks that ended without finishing back in their lines; return which.

    Some statements for all of them, in the caller's transaction, which is theirs to repeat.
    """
    with in_transaction(using) as db:
        back = retry_dead(db, ids, using, None)
        announce_ids(db, [(signals.task_put_back, list(back))])
    return set(back)


def retry_dead(
    db: Session, ids: Collection[int], using: str, now: datetime | None
) -> dict[int, str]:
    """Put tasks that ended without finishing back; return those, each with its queue."""
    # Read under the lock: someone may have moved or put back one meanwhile.
    rows = db.rows(DEAD + db.dialect.change_clause(), ids=ids)
    if not rows:
        return {}
    back = {task_id: queue for task_id, queue, *_names in rows}
    db.execute(REOPEN, ids=back)
    db.dialect.delete(db.cursor, "perfectqueue_deadletter", back, key="task_id")
    children, followed = family(db, back)
    lanes = [
        (task_id, lane_behind(queue, type_, user, split(limits), using=using))
        for task_id, queue, type_, user, limits in rows
    ]
    first = {lane: task_id for task_id, lane in lanes if task_id not in children}
    for queue in sorted(set(back.values())):
        own = {lane: task_id for lane, task_id in first.items() if back[task_id] == queue}
        ring(queue, using=using, lanes=own, wake=wake_sleeping)
    statement = REQUEUE.replace("{lanes}", cases(lanes)).replace("{followed}", whens(followed))
    db.execute(statement, now=now, ids=back, children=children)
    given_up = db.rows(GIVEN_UP, ids=back)
    if given_up:
        db.execute(AWAIT, ids=[id_ for (id_,) in given_up])
    if children:
        # What they wait for may end before this commit: that is looked at after it. A batch that
        # has ended looks at its callbacks again.
        note(db, added=children, ended=[id_ for (id_,) in db.rows(CLOSES, ids=children)])
    return back


def whens(followed: Mapping[int, int]) -> str:
    """Return the SQL of who follows each task."""
    return f'CASE "id" {cases(followed.items())} ELSE NULL END' if followed else "NULL"


def family(db: Session, ids: Collection[int]) -> tuple[list[int], dict[int, int]]:
    """
    Return which dead tasks wait for others, and who follows each that is followed.

    Their rows are locked; in their batches they count as dead no longer.
    """
    children, followed, dead = [], {}, Counter[int]()
    rows = db.rows(FAMILY, ids=ids)
    for task_id, is_child, has_children, batch in rows:
        if is_child:
            children.append(task_id)
        if by := 2 * (batch or 0) + int(has_children):
            followed[task_id] = by
        if batch:
            dead[batch] -= 1
    if dead:
        note_counts(db, {batch: Counts(dead=count) for batch, count in dead.items()})
    return children, followed


def hasten(db: Session, task_id: int, key: str, now: datetime | None) -> None:
    ticket = live(db, task_id)
    refuse_unfit(key, "", ticket.state)
    db.execute(HASTEN, {"task_id": task_id}, now=now)


def known(db: Session, task_id: int) -> TaskRow:
    """
    Return a task's row.

    Raise NotFoundError when there is none.
    """
    row = db.execute(TASK, {"task_id": task_id}).fetchone()
    if row is None:
        raise NotFoundError(f"There is no task with the id {task_id}.")
    return TaskRow(*row)


def live(db: Session, task_id: int) -> LockedTicket:
    """
    Lock a task's ticket.

    Raise NotFoundError when the task is gone, AlreadyFinishedError when it has ended.
    """
    statement = TICKET + db.dialect.lock_clause()
    row = db.execute(statement, {"task_id": task_id}).fetchone()
    if row is None:
        task = known(db, task_id)
        raise AlreadyFinishedError(f"Task '{task.key}' has ended: it is {task.outcome}.")
    return LockedTicket(*row)


def drop(db: Session, ticket: LockedTicket) -> None:
    """Take a running task off its lane's account."""
    if ticket.state == State.RUNNING:
        accounts = Accounts()
        accounts.lose(ticket.lane, reached=ticket.reached)
        accounts.write(db)
