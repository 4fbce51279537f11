"""Steer tasks after the commit of the caller's transaction, which then locks none of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec

from django.db import connections, transaction

from django_perfectqueue.exceptions import (
    AlreadyFinishedError,
    NotFoundError,
    NotSupportedError,
    TaskError,
)
from django_perfectqueue.models import Outcome, State

from ..database.session import Session
from ..database.transaction import reading

P = ParamSpec("P")

logger = logging.getLogger("django_perfectqueue.queue")

SEEN = """
SELECT "task"."key", "task"."outcome", "ticket"."state" FROM "perfectqueue_task" AS "task"
LEFT JOIN "perfectqueue_ticket" AS "ticket" ON "ticket"."task_id" = "task"."id"
WHERE "task"."id" = %(task_id)s
"""

OF_DEAD = ("retry", "revise")
"""The verbs that are for tasks, too, which have ended without finishing."""


class SeenTask(NamedTuple):
    """What SEEN selects; ``state`` is None where it has no ticket."""

    key: str
    outcome: str
    state: int | None


def refuse(task: SeenTask, verb: str = "") -> None:
    """Raise AlreadyFinishedError or NotSupportedError where a verb is not for a task as it is."""
    if task.outcome and (verb not in OF_DEAD or task.outcome == Outcome.FINISHED):
        raise AlreadyFinishedError(f"Task '{task.key}' has ended: it is {task.outcome}.")
    if verb == "retry" and task.state not in (None, State.SCHEDULED):
        words = {known.value: known.name.lower() for known in State}
        word = words.get(task.state, "in no known state")
        raise NotSupportedError(f"Task '{task.key}' is {word} already.")
    if verb == "revise" and task.state == State.RUNNING:
        raise NotSupportedError(f"Task '{task.key}' is running: only its handler may change it.")


def steer(
    verb: Callable[Concatenate[Collection[int], P], Collection[int]],
    task_id: int,
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """
    Do a verb to one task; in a transaction of the caller's, after its commit.

    Locks that are held until that commit would hold up the worker that runs the task, and
    all tasks of its user. What can't succeed is refused at once: raise NotFoundError where the
    task is gone, AlreadyFinishedError or NotSupportedError where the verb is not for it, and
    what the verb raises.
    """
    using, name = str(kwargs["using"]), verb.__name__

    def act() -> None:
        if task_id not in verb([task_id], *args, **kwargs):
            look_at(task_id, name, using=using)
            raise AlreadyFinishedError(f"The task with the id {task_id} was changed meanwhile.")

    if is_in_block(connections[using]):
        look_at(task_id, name, using=using)
    if not is_put_off(act, using=using):
        act()


def look_at(task_id: int, verb: str = "", *, using: str) -> None:
    """Raise what refuse() raises for a task as it is now, or NotFoundError."""
    with reading(using) as db:
        refuse(seen(db, task_id), verb)


def seen(db: Session, task_id: int) -> SeenTask:
    """Return a task as it is now; raise NotFoundError when there is none."""
    row = db.execute(SEEN, {"task_id": task_id}).fetchone()
    if row is None:
        raise NotFoundError(f"There is no task with the id {task_id}.")
    return SeenTask(*row)


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
