"""Give a task another queue, data or priority, or another task its key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from django.db import IntegrityError

from django_perfectqueue.exceptions import NotFoundError, NotSupportedError
from django_perfectqueue.models import Change, Dependency, State, Task, TaskQuerySet, Ticket
from django_perfectqueue.models.batch import SEQUENCE

from ..arithmetic.rate_limit import split
from ..database.transaction import (
    REPEATS,
    Session,
    Tries,
    in_transaction,
    retry_remembering_commits,
)
from ..limits.meters import lane_behind
from ..notify.ring import find_all, notify_workers
from ..records.dependency_events import MemberCounts, counts_without, join, note
from ..records.journal import sign
from ..values import Ids, Now, Submission
from .close import lock_tickets
from .park import forget_story
from .steer import SeenTask, done_before, refuse
from .submit import notify, refuse_too_long, store_free, stored_before, taken

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
            former = row.queue
            if to == former:
                if tries:
                    return
                raise NotSupportedError(f"Task '{row.key}' is in queue '{to}' already.")
            if to and find_all(to, [row.key], using=using):
                raise taken(to, row.key)
            row.queue = to or former
            if revision.rewrite:
                row.payload = revision.rewrite(row.payload)
                refuse_too_long(db, row.key, row.payload)
            row.save(using=using, update_fields=["queue", "payload"])
            if is_live:
                lane = lane_behind(row.queue, row.type, row.user, split(row.limits), using=using)
                db.execute(PLACE, {"id": task_id, "lane": lane})
            record(row, former, revision, using)
            tries.append(task_id)
    except IntegrityError as error:
        raise taken(to, row.key) from error
    if is_live:
        notify_workers(row.queue, using=using)


def locked(db: Session, task_id: int) -> tuple[Task, bool]:
    """Lock a task, and return its row and whether it has a ticket; raise what revise() does."""
    states = [ticket.state for ticket in lock_tickets(db, [task_id])]
    state = states[0] if states else None
    rows = TaskQuerySet(Task, using=db.using).select_for_update()
    row = rows.filter(pk=task_id).first()
    if row is None:
        raise NotFoundError(f"There is no task with the id {task_id}.")
    refuse(SeenTask(row.key, row.outcome, state), "revise")
    if state is None and not row.outcome:
        raise NotSupportedError(f"Task '{row.key}' was put back in line by someone else.")
    return row, state is not None


def record(row: Task, former: str, revision: Revision, using: str) -> None:
    """Record who did it, where its queue is now; what was recorded before goes along."""
    if row.queue != former:
        recorded = Change.objects.using(using).filter(kind=Change.Kind.TASK, name=row.key)
        recorded.filter(queue=former).update(queue=row.queue)
        sign([(row.queue, row.key)], "moved", by=revision.by, using=using, more={"from": former})
    if revision.rewrite:
        sign([(row.queue, row.key)], "edited", by=revision.by, using=using)


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
            Ticket.objects.using(using).filter(pk__in=done).update(rank=-priority)
            TaskQuerySet(Task, using=using).filter(pk__in=done).update(priority=priority)
        # What an earlier try has changed may have ended since.
        done |= done_before(db, tries, set(ids) - done, "priority", priority)
        tries.append(done)
    return done


# Submit a task in the place of one with the same key.


FORGET = 'DELETE FROM "perfectqueue_task" WHERE "id" = %(id)s'
ENDED = " AND \"outcome\" <> ''"


# The tasks that wait for it wait for the one in its place.
WAITING = """
SELECT "id", "child_id", "if_failed" FROM "perfectqueue_dependency"{by_parent}
WHERE "parent_id" = %(old)s AND "state" < 3
"""
IN_SEQUENCE = f'SELECT 1 FROM "perfectqueue_dependency" WHERE "if_failed" = {SEQUENCE}'
REPLACED = f"""
SELECT "id", EXISTS ({IN_SEQUENCE} AND "state" < 3 AND "child_id" = "perfectqueue_task"."id")
    OR EXISTS ({IN_SEQUENCE} AND "state" < 3 AND "parent_id" = "perfectqueue_task"."id")
FROM "perfectqueue_task" WHERE "queue" = %(queue)s AND "key" = %(key)s
"""


def replace(submissions: Sequence[Submission], *, using: str, now: Now = None) -> Ids:
    """
    Put tasks in the places of those with their keys, which are forgotten, also in their batches;
    return their ids by queue and key.

    Raise NotSupportedError while one of these is running, or waits or is waited for in a
    sequence, and AlreadyExistsError when others take a key again and again.
    """
    fresh = replace_now(submissions, using=using, now=now)
    notify(submissions, fresh, using=using, now=now)
    return fresh


@retry_remembering_commits
def replace_now(tries: Tries, submissions: Sequence[Submission], *, using: str, now: Now) -> Ids:
    fresh: Ids = {}
    with in_transaction(using, now=now) as db:
        if before := stored_before(db, tries):
            return before
        for submission in submissions:
            fresh |= replace_one(db, submission)
        tries.append(fresh)
    return fresh


def replace_one(db: Session, submission: Submission) -> Ids:
    for _repeat in range(REPEATS):
        row = db.execute(REPLACED, {"queue": submission.queue, "key": submission.key}).fetchone()
        if row and row[1]:
            raise NotSupportedError(
                f"Task '{submission.key}' is in a sequence, where it waits or is waited for: it"
                " can't be replaced."
            )
        left = forget(db, row[0], submission.key) if row else {}
        if left is None:
            continue
        for batch in left:
            submission = submission._replace(followed=2 * batch + (submission.followed or 0))
        if fresh := store_free([submission], using=db.using, now=db.now):
            if row:
                transfer(db, row[0], *fresh.values())
            for batch, change in left.items():
                join(db, batch, fresh.values(), change)
            return fresh
    raise taken(submission.queue, submission.key)


def transfer(db: Session, old: int, new: int) -> None:
    """Have what waits for one task wait for another."""
    # A child is found, too, that was submitted after the caller had begun to read, and one whose
    # submitter has yet to commit is waited for: here, or on PostgreSQL by the parent's row.
    by_parent = db.dialect.by_index("perfectqueue_dep_parent")
    statement = WAITING + db.dialect.share_clause
    if waiting := db.rows(statement, {"old": old}, by_parent=by_parent):
        links = Dependency.objects.using(db.using)
        # One that has come behind it in its sequence meanwhile has its turn.
        moved = {id_: child for id_, child, mode in waiting if mode != SEQUENCE}
        links.filter(pk__in=moved).update(parent_id=new, state=Dependency.State.NEW)
        note(db, added=set(moved.values()), ended=[old] if len(moved) < len(waiting) else ())


def forget(db: Session, task_id: int, key: str) -> dict[int, MemberCounts] | None:
    """
    Delete a task, and return how the counts of its batch change; None where it is gone, or
    someone has put it back meanwhile.

    Raise NotSupportedError while it is running.
    """
    tickets = lock_tickets(db, [task_id])
    if any(ticket.state == State.RUNNING for ticket in tickets):
        raise NotSupportedError(f"Task '{key}' is running.")
    left = counts_without(db, [task_id])
    if tickets:
        db.dialect.remove(db.cursor, [task_id])
    db.execute(FORGET + ("" if tickets else ENDED), {"id": task_id})
    if not db.cursor.rowcount:
        return None
    forget_story(db, [task_id])
    return left
