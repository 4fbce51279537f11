"""Submit a task in the place of one with the same key."""

from __future__ import annotations

from datetime import datetime

from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    AlreadyFinishedError,
    NotFoundError,
    NotSupportedError,
)
from django_perfectqueue.models import State

from ..database.dialects import Dialect
from ..database.dialects.base import numbers
from ..database.transaction import REPEATS, Tries, recalled, unit
from ..records.dependency_events import leave_batches, note_added
from ..values import Submission
from .forget import forget_story
from .steer import FIND, live
from .submit import notify, store_free

FORGET = 'DELETE FROM "perfectqueue_task" WHERE "id" = {id}'
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
    submission: Submission, *, using: str, now: datetime | None = None
) -> dict[tuple[str, str], int]:
    """
    Put a task in the place of the one with its key, which is forgotten; return its id by
    queue and key.

    Raise NotSupportedError while that is running, and AlreadyExistsError when others
    take the key again and again.
    """
    fresh = replace_now(submission, using=using, now=now)
    notify([submission], fresh, using=using, now=now)
    return fresh


@recalled
def replace_now(
    tries: Tries, submission: Submission, *, using: str, now: datetime | None
) -> dict[tuple[str, str], int]:
    names = {"queue": submission.queue, "key": submission.key}
    with unit(using) as (cursor, dialect):
        for _repeat in range(REPEATS):
            row = dialect.execute(cursor, FIND, names).fetchone()
            if row and row[0] in tries.doubtful:
                return {(submission.queue, submission.key): row[0]}
            free = row is None or forget(cursor, dialect, row[0], submission.key)
            if free and (fresh := store_free([submission], using=using, now=now)):
                tries.doubtful += fresh.values()
                if row:
                    transfer(cursor, dialect, row[0], *fresh.values())
                return fresh
        raise AlreadyExistsError(
            f"Queue '{submission.queue}' already has a task with the key '{submission.key}'."
        )


def transfer(cursor: Cursor, dialect: Dialect, old: int, new: int) -> None:
    """Have what waits for one task wait for another."""
    values = {"old": old, "new": new}
    # A child is found, too, that was submitted after the caller had begun to read, and one whose
    # submitter has yet to commit is waited for: here, or on PostgreSQL by the parent's row.
    statement = WAITING.replace("{hint}", dialect.by_index("perfectqueue_dep_parent"))
    statement += dialect.share_clause()
    if waiting := dialect.execute(cursor, statement, values).fetchall():
        ids = numbers(id_ for id_, _child in waiting)
        dialect.execute(cursor, TRANSFER.replace("{ids}", ids), values)
        note_added(cursor, dialect, sorted({child for _id, child in waiting}))


def forget(cursor: Cursor, dialect: Dialect, task_id: int, key: str) -> bool:
    """
    Delete a task, and return whether it is gone; someone may have put it back meanwhile.

    Raise NotSupportedError while it is running.
    """
    leave_batches(cursor, dialect, numbers([task_id]))
    forget_task = FORGET.replace("{id}", str(task_id))
    try:
        if live(cursor, dialect, task_id).state == State.RUNNING:
            raise NotSupportedError(f"Task '{key}' is running.")
    except NotFoundError:
        return True
    except AlreadyFinishedError:
        dialect.execute(cursor, forget_task + ENDED)
        if not cursor.rowcount:
            return False
    else:
        dialect.remove(cursor, task_id)
        dialect.execute(cursor, forget_task)
    forget_story(cursor, dialect, [task_id])
    return True
