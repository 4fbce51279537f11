"""Watch for tasks that end, by notification or by polling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from django.db import connections

from django_perfectqueue.conf import options

from ..database.dialects import dialect_of
from ..database.transaction import is_callers, reading, retry_transaction
from ..values import ENDED
from .postgres import ChannelListener

KEYS = 100
IDS = 500
"""More than 1000 in a list MariaDB takes for a table to join, and reads the whole other one."""

FIND = """
SELECT "key", "id" FROM "perfectqueue_task" WHERE "queue" = %(queue)s AND "key" = %({name})s
"""
LIVE = 'SELECT "task_id", "watched" FROM "perfectqueue_ticket" WHERE "task_id" IN ({ids})'
ENDS = """
SELECT "id", "outcome", "result",
    (SELECT "group" FROM "perfectqueue_deadletter" WHERE "task_id" = "perfectqueue_task"."id"),
    (SELECT "message" FROM "perfectqueue_deadletter" WHERE "task_id" = "perfectqueue_task"."id")
FROM "perfectqueue_task" WHERE "id" IN ({ids})
"""
WATCH = """
UPDATE "perfectqueue_ticket" SET "watched" = TRUE
WHERE "task_id" = ANY(ARRAY(
    SELECT "task_id" FROM "perfectqueue_ticket"
    WHERE "task_id" IN ({ids}) AND NOT "watched" ORDER BY "task_id" FOR UPDATE SKIP LOCKED
)) AND ("task_id"{asynchronous_commit}) IS NOT NULL
"""


class Ended(NamedTuple):
    """How a task has ended: ``outcome`` is empty while it has not, ``result`` a stored text."""

    outcome: str
    result: str | None
    error: str | None
    message: str | None


@retry_transaction
def find_all(queue: str, keys: Iterable[str], *, using: str) -> dict[str, int]:
    """
    Return the ids of those tasks of a queue that there are, by key.

    Key by key: of a list PostgreSQL may think that it had better read the whole queue.
    """
    rest, found = iter(keys), {}
    with reading(using) as db:
        while some := list(islice(rest, KEYS)):
            values = {f"k{number}": key for number, key in enumerate(some)}
            statement = " UNION ALL ".join(FIND.replace("{name}", name) for name in values)
            rows = db.execute(statement, {**values, "queue": queue})
            found.update(rows.fetchall())
    return found


@retry_transaction
def live(ids: Sequence[int], *, using: str) -> Mapping[int, bool]:
    """Return which tasks have yet to end, each with whether its end will be notified."""
    return {task_id: bool(watched) for task_id, watched in rows(LIVE, ids, using=using)}


@retry_transaction
def ends(ids: Sequence[int], *, using: str) -> dict[int, Ended]:
    """Return how tasks have ended; those that are no longer there are left out."""
    return {task_id: Ended(*row) for task_id, *row in rows(ENDS, ids, using=using)}


def rows(statement: str, ids: Sequence[int], *, using: str) -> Iterator[tuple[Any, ...]]:
    """Yield what a statement says of these tasks, some of them at a time."""
    with reading(using) as db:
        for begin in range(0, len(ids), IDS):
            yield from db.rows(statement, ids=ids[begin : begin + IDS])


@retry_transaction
def watch(ids: Sequence[int], *, using: str) -> None:
    """
    Ask for a notification when these tasks end.

    What someone else has locked is passed over: that may be for as long as a handler runs.
    The commit is asynchronous, so that a claim finds the tickets locked for no longer than
    the statement takes; if a crash of the server loses it, the caller still polls.
    """
    with reading(using) as db:
        statement = WATCH.replace("{asynchronous_commit}", db.dialect.asynchronous_commit)
        db.execute(statement, ids=ids)


def end_listener(using: str) -> ChannelListener | None:
    """
    Return a listener for ends, not yet open, or None where the database sends none.

    Nothing is heard behind a pooler that lends out connections for one transaction; Django
    needs DISABLE_SERVER_SIDE_CURSORS.
    """
    pooled = connections[using].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    notifies = dialect_of(using).notifies and options().NOTIFY and not pooled
    return ChannelListener(using) if notifies else None


def end_channels(ids: Iterable[int]) -> set[str]:
    """Return the channels on which the ends of these tasks are notified."""
    return {f"{ENDED}{task_id}" for task_id in ids}


def in_callers_transaction(using: str) -> bool:
    """Return whether a transaction may be open in which the ends of tasks may never be seen."""
    return is_callers(connections[using])
