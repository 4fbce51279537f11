"""Cancel tasks with those that wait for them, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import NamedTuple

from django.db import connections

from django_perfectqueue.exceptions import NotSupportedError

from ..database.transaction import reading, retry_transaction
from ..tasks.steer import cancel_each, is_in_block, look_at, seen_task
from .graph import ancestors, descendants

LIVE_TASKS = """
SELECT "id", "key" FROM "perfectqueue_task" WHERE "id" IN ({ids}) AND "outcome" = ''
"""


class Dependents(NamedTuple):
    """The live tasks that wait for some tasks, directly or not: ids, the last first; some keys."""

    ids: tuple[int, ...]
    keys: tuple[str, ...]


class Chosen(NamedTuple):
    """Tasks that may be cancelled, the last first, and those for which others wait."""

    ids: list[int]
    awaited: set[int]


def cancel_request(
    task_id: int, *, using: str, together: bool = False, now: datetime | None = None
) -> bool:
    """
    Cancel a task that has yet to run, or ask the one who runs it to stop.

    ``together`` does so with the tasks that wait for it, too. Return whether it is cancelled
    already; in a transaction of the caller's it is not, as that is done after the commit.
    Raise NotFoundError when it is gone, AlreadyFinishedError when it has ended, and
    NotSupportedError where tasks wait for it and are not cancelled with it.
    """
    waiting = dependents([task_id], using=using).ids
    if waiting and not together:
        with reading(using) as db:
            key = seen_task(db, task_id).key
        raise NotSupportedError(
            f"{len(waiting)} tasks wait for task '{key}', directly or not."
            " Cancel them with it: cancel_request(together=True)."
        )
    if is_in_block(connections[using]):
        look_at(task_id, using=using)
    done = cancel_each([*waiting, task_id], using=using, now=now)
    if task_id not in done:
        look_at(task_id, using=using)
    return done.get(task_id, False)


@retry_transaction
def choose(
    ids: Collection[int],
    *,
    using: str,
    among: Callable[[Collection[int]], Collection[int]] = lambda ids: (),
) -> Chosen:
    """
    Return which of these tasks may be cancelled, with the tasks that wait for them.

    Those for which a task waits that is not among them may not; ``among`` says of tasks that
    wait for them which are among them, too.
    """
    others = set(dependents(ids, using=using).ids).difference(ids)
    more = set(among(others)) if others else set()
    awaited = ancestors(others - more, using=using)
    chosen = more.union(ids) - awaited
    return Chosen(sorted(chosen, reverse=True), awaited.intersection(ids))


@retry_transaction
def dependents(ids: Collection[int], *, using: str, sample: int = 10) -> Dependents:
    """Return which tasks would be cancelled together with these."""
    found = descendants(ids, using=using)
    with reading(using) as db:
        live = sorted(db.rows_of(LIVE_TASKS, "ids", found), reverse=True)
    keys = tuple(key for _id, key in live[-sample:][::-1])
    return Dependents(tuple(id_ for id_, _key in live), keys)
