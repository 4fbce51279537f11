"""Submit a task in the place of one with the same key."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from ..exceptions import AlreadyFinishedError, NotFoundError, NotSupportedError
from ..models import State
from .end import REMOVE
from .steer import find, live
from .submit import submit
from .transaction import repeated, unit
from .values import Submission

FORGET = (
    REMOVE,
    'DELETE FROM "perfectqueue_deadletter" WHERE "task_id" = %(task_id)s',
    'DELETE FROM "perfectqueue_attempt" WHERE "task_id" = %(task_id)s',
    'DELETE FROM "perfectqueue_task" WHERE "id" = %(task_id)s',
)


@repeated
def replace(submission: Submission, *, using: str, now: datetime | None = None) -> None:
    """
    Put a task in the place of the one with its key, which is forgotten.

    Raise NotSupportedError while that is running.
    """
    try:
        task_id = find(submission.queue, submission.key, using=using)
    except NotFoundError:
        submit([submission], using=using, now=now)
        return
    with unit(using) as (cursor, dialect):
        with suppress(AlreadyFinishedError):
            if live(cursor, dialect, task_id).state == State.RUNNING:
                raise NotSupportedError(f"Task '{submission.key}' is running.")
        for statement in FORGET:
            dialect.execute(cursor, statement, {"task_id": task_id})
        submit([submission], using=using, now=now)
