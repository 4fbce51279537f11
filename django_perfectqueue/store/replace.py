"""Submit a task in the place of one with the same key."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..exceptions import (
    AlreadyExistsError,
    AlreadyFinishedError,
    NotFoundError,
    NotSupportedError,
)
from ..models import State
from .dialects import Dialect
from .steer import FIND, live
from .submit import submit
from .transaction import REPEATS, Tries, recalled, unit
from .values import Submission

FORGET = 'DELETE FROM "perfectqueue_task" WHERE "id" = %(task_id)s'
ENDED = " AND \"outcome\" <> ''"
FORGET_STORY = (
    'DELETE FROM "perfectqueue_attempt" WHERE "task_id" = %(task_id)s',
    'DELETE FROM "perfectqueue_journal" WHERE "task_id" = %(task_id)s',
    'DELETE FROM "perfectqueue_deadletter" WHERE "task_id" = %(task_id)s',
)


@recalled
def replace(
    tries: Tries, submission: Submission, *, using: str, now: datetime | None = None
) -> dict[tuple[str, str], int]:
    """
    Put a task in the place of the one with its key, which is forgotten; return what submit()
    does.

    Raise NotSupportedError while that is running, and AlreadyExistsError when others
    take the key again and again.
    """
    names = {"queue": submission.queue, "key": submission.key}
    with unit(using) as (cursor, dialect):
        for _repeat in range(REPEATS):
            row = dialect.execute(cursor, FIND, names).fetchone()
            if row and row[0] in tries.doubtful:
                return {(submission.queue, submission.key): row[0]}
            free = row is None or forget(cursor, dialect, row[0], submission.key)
            if free and (stored := submit([submission], using=using, now=now)):
                tries.doubtful += stored.values()
                return stored
        raise AlreadyExistsError(
            f"Queue '{submission.queue}' already has a task with the key '{submission.key}'."
        )


def forget(cursor: Any, dialect: Dialect, task_id: int, key: str) -> bool:
    """
    Delete a task, and return whether it is gone; someone may have put it back meanwhile.

    Raise NotSupportedError while it is running.
    """
    values = {"task_id": task_id}
    try:
        if live(cursor, dialect, task_id).state == State.RUNNING:
            raise NotSupportedError(f"Task '{key}' is running.")
    except NotFoundError:
        return True
    except AlreadyFinishedError:
        dialect.execute(cursor, FORGET + ENDED, values)
        if not cursor.rowcount:
            return False
    else:
        dialect.remove(cursor, task_id)
        dialect.execute(cursor, FORGET, values)
    for statement in FORGET_STORY:
        dialect.execute(cursor, statement, values)
    return True
