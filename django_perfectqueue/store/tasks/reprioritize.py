"""Give a task another priority."""

from __future__ import annotations

from functools import partial

from django_perfectqueue.exceptions import AlreadyFinishedError

from ..database.transaction import Tries, recalled, unit
from .after_commit import once_committed
from .steer import known, live

TICKET = 'UPDATE "perfectqueue_ticket" SET "rank" = %(rank)s WHERE "task_id" = %(task_id)s'
TASK = 'UPDATE "perfectqueue_task" SET "priority" = %(priority)s WHERE "id" = %(task_id)s'


def reprioritize(task_id: int, priority: int, *, using: str) -> None:
    """
    Give a task that has yet to end another priority, and with it another place in its line.

    One that is running goes on; the priority holds if it is tried again. In a transaction
    of the caller's it is done after the commit. Raise NotFoundError when it is gone,
    AlreadyFinishedError when it has ended.
    """
    act = partial(reprioritize_now, task_id, priority, using=using)
    once_committed(act, task_id, using=using)


@recalled
def reprioritize_now(tries: Tries, task_id: int, priority: int, *, using: str) -> None:
    with unit(using) as db:
        try:
            live(db, task_id)
        except AlreadyFinishedError:
            if tries.doubtful and known(db, task_id).priority == priority:
                return
            raise
        db.execute(TICKET, {"task_id": task_id, "rank": -priority})
        db.execute(TASK, {"task_id": task_id, "priority": priority})
        tries.commits(task_id)
