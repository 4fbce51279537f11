"""Cancel a task with those that wait for it, or not at all."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from django_perfectqueue.exceptions import AlreadyFinishedError, NotFoundError, NotSupportedError

from ..database.transaction import reading, retry_transaction
from ..tasks.steer import cancel_one, known
from .graph import descendants
from .submit import ROWS

LIVE = """
SELECT "id", "key" FROM "perfectqueue_task" WHERE "id" IN ({ids}) AND "outcome" = ''
ORDER BY "id"
"""


class Cone(NamedTuple):
    """The live tasks that wait for some tasks, directly or not: ids, the last first; some keys."""

    ids: tuple[int, ...]
    keys: tuple[str, ...]


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
    waiting = cone([task_id], using=using)
    if waiting.ids and not together:
        with reading(using) as db:
            key = known(db, task_id).key
        raise NotSupportedError(
            f"{len(waiting.ids)} tasks wait for task '{key}', directly or not."
            " Cancel them with it: cancel_request(together=True)."
        )
    for child in waiting.ids:
        with suppress(AlreadyFinishedError, NotFoundError):
            cancel_one(child, using=using, now=now)
    return bool(cancel_one(task_id, using=using, now=now))


@retry_transaction
def cone(ids: Collection[int], *, using: str, sample: int = 10) -> Cone:
    """Return which tasks would be cancelled together with these."""
    found = descendants(ids, using=using)
    live: list[tuple[int, str]] = []
    with reading(using) as db:
        for start in range(0, len(found), ROWS):
            live += db.rows(LIVE, ids=found[start : start + ROWS])
    live.sort(reverse=True)
    return Cone(tuple(id_ for id_, _key in live), tuple(key for _id, key in live[-sample:][::-1]))
