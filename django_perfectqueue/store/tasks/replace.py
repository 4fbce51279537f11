"""Submit a task in the place of one with the same key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django_perfectqueue.exceptions import NotSupportedError
from django_perfectqueue.models import State

from ..database.session import Session
from ..database.transaction import REPEATS, Tries, in_transaction, retry_remembering_commits
from ..records.dependency_events import MemberCounts, counts_without, join, note
from ..values import Submission
from .close import lock_tickets
from .forget import forget_story
from .steer import FIND
from .submit import notify, store_free, stored_before, taken

FORGET = 'DELETE FROM "perfectqueue_task" WHERE "id" = %(id)s'
ENDED = " AND \"outcome\" <> ''"


# The tasks that wait for it wait for the one in its place.
WAITING = """
SELECT "id", "child_id" FROM "perfectqueue_dependency"{hint}
WHERE "parent_id" = %(old)s AND "state" < 3
"""
TRANSFER = """
UPDATE "perfectqueue_dependency" SET "parent_id" = %(new)s, "state" = 0 WHERE "id" IN ({ids})
"""


def replace(
    submissions: Sequence[Submission], *, using: str, now: datetime | None = None
) -> dict[tuple[str, str], int]:
    """
    Put tasks in the places of those with their keys, which are forgotten, also in their batches;
    return their ids by queue and key.

    Raise NotSupportedError while one of these is running, and AlreadyExistsError when others
    take a key again and again.
    """
    fresh = replace_now(submissions, using=using, now=now)
    notify(submissions, fresh, using=using, now=now)
    return fresh


@retry_remembering_commits
def replace_now(
    tries: Tries, submissions: Sequence[Submission], *, using: str, now: datetime | None
) -> dict[tuple[str, str], int]:
    fresh: dict[tuple[str, str], int] = {}
    with in_transaction(using) as db:
        if before := stored_before(db, tries):
            return before
        for submission in submissions:
            fresh |= replace_one(db, submission, using, now)
        tries.append(fresh)
    return fresh


def replace_one(
    db: Session, submission: Submission, using: str, now: datetime | None
) -> dict[tuple[str, str], int]:
    for _repeat in range(REPEATS):
        row = db.execute(FIND, {"queue": submission.queue, "key": submission.key}).fetchone()
        left = forget(db, row[0], submission.key) if row else {}
        if left is None:
            continue
        for batch in left:
            submission = submission._replace(followed=2 * batch + (submission.followed or 0))
        if fresh := store_free([submission], using=using, now=now):
            if row:
                transfer(db, row[0], *fresh.values())
            for batch, change in left.items():
                join(db, batch, fresh.values(), change)
            return fresh
    raise taken(submission.queue, submission.key)


def transfer(db: Session, old: int, new: int) -> None:
    """Have what waits for one task wait for another."""
    values = {"old": old, "new": new}
    # A child is found, too, that was submitted after the caller had begun to read, and one whose
    # submitter has yet to commit is waited for: here, or on PostgreSQL by the parent's row.
    statement = WAITING.replace("{hint}", db.dialect.by_index("perfectqueue_dep_parent"))
    statement += db.dialect.share_clause
    if waiting := db.rows(statement, values):
        db.execute(TRANSFER, values, ids=[id_ for id_, _child in waiting])
        note(db, added={child for _id, child in waiting})


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
