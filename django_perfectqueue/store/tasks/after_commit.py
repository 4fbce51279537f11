"""Steer tasks after the commit of the caller's transaction, which then locks none of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.db import connections, transaction

from django_perfectqueue.exceptions import AlreadyFinishedError, NotFoundError, TaskError

from ..database.transaction import reading

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("django_perfectqueue.queue")

SEEN = """
SELECT "task"."key", "task"."outcome", "ticket"."state" FROM "perfectqueue_task" AS "task"
LEFT JOIN "perfectqueue_ticket" AS "ticket" ON "ticket"."task_id" = "task"."id"
WHERE "task"."id" = %(task_id)s
"""

Check = Callable[[str, str, int | None], None]


def refuse_ended(key: str, outcome: str, state: int | None) -> None:
    """Raise AlreadyFinishedError where a task has ended."""
    if outcome:
        raise AlreadyFinishedError(f"Task '{key}' has ended: it is {outcome}.")


def after_callers_commit(
    act: Callable[Concatenate[int, P], R], check: Check = refuse_ended
) -> Callable[Concatenate[int, P], R | None]:
    """
    Make a verb, which gets a task's id first, wait for the commit of a transaction of the
    caller's; then it returns None, and else at once what ``act`` returns.

    Locks that are held until that commit would hold up the worker that runs the task, and
    all tasks of its user. What can't succeed is refused at once: raise what ``check`` raises
    for the key, the outcome and the ticket's state, or NotFoundError.
    """

    @wraps(act)
    def steer(task_id: int, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        using, call = str(kwargs["using"]), partial(act, task_id, *args, **kwargs)
        if is_in_block(connections[using]):
            look_at(task_id, check, using=using)
        return None if is_put_off(call, using=using) else call()

    return steer


def look_at(task_id: int, check: Check = refuse_ended, *, using: str) -> None:
    """Raise what ``check`` raises for a task as it is now, or NotFoundError."""
    with reading(using) as db:
        row = db.execute(SEEN, {"task_id": task_id}).fetchone()
    if row is None:
        raise NotFoundError(f"There is no task with the id {task_id}.")
    check(*row)


def is_put_off(act: Callable[[], object], *, using: str) -> bool:
    """Where a transaction of the caller's is open have a call made after its commit."""
    is_open = is_in_block(connections[using])
    if is_open:
        transaction.on_commit(Steering(act), using=using, robust=True)
    return is_open


def is_in_block(connection: Any) -> bool:
    """
    Return whether an atomic block of the caller's is open.

    The blocks that Django's TestCase puts around a test never commit, so they do not count.
    """
    return any(not block._from_testcase for block in connection.atomic_blocks)


@dataclass(slots=True, eq=False)
class Steering:
    """A call that waits for the commit, and is made once."""

    act: Callable[[], object]
    is_done: bool = False

    def __call__(self) -> None:
        if self.is_done:
            return
        self.is_done = True
        try:
            self.act()
        except TaskError as error:
            logger.info("A task was not steered after the commit. %s", error)


def steer_waiting(*, using: str) -> None:
    """Make the calls that wait for a commit which never comes: in a TestCase, after its blocks."""
    connection = connections[using]
    if not is_in_block(connection):
        for waiting in list(connection.run_on_commit):
            if isinstance(waiting[1], Steering):
                waiting[1]()
