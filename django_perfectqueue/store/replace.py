"""Submit a task in the place of one with the same key."""

from __future__ import annotations

from datetime import datetime

from ..exceptions import AlreadyFinishedError, NotSupportedError
from .end import REMOVE
from .steer import RUNNING, known, live
from .submit import submit
from .transaction import repeated, unit
from .values import Submission

FORGET = (
    'DELETE FROM "perfectqueue_deadletter" WHERE "task_id" = %(task_id)s',
    'DELETE FROM "perfectqueue_attempt" WHERE "task_id" = %(task_id)s',
    'DELETE FROM "perfectqueue_task" WHERE "id" = %(task_id)s',
)


@repeated
def replace(
    task_id: int, submission: Submission, *, using: str, now: datetime | None = None
) -> int:
    """
    Put a task in the place of another, which is forgotten; return its id.

    Raise NotSupportedError while the other is running.
    """
    with unit(using) as (cursor, dialect):
        try:
            ticket = live(cursor, dialect, task_id)
        except AlreadyFinishedError:
            known(cursor, dialect, task_id)
        else:
            if ticket.state == RUNNING:
                raise NotSupportedError(f"Task '{submission.key}' is running.")
            dialect.execute(cursor, REMOVE, {"task_id": task_id})
        for statement in FORGET:
            dialect.execute(cursor, statement, {"task_id": task_id})
        stored = submit([submission], using=using, now=now)
        return stored[submission.queue, submission.key]
