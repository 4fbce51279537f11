"""Store tasks, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from ..exceptions import InvalidTaskError
from .dialects import Dialect, dialect_of
from .dialects.base import numbers
from .packet import LONG
from .transaction import PATIENCE, Tries, reading, recalled, unit
from .values import Submission, new_token

CHUNK = 1000
CHUNK_LETTERS = 4 * 1024 * 1024

STORED = """
SELECT "task"."id" FROM "perfectqueue_task" AS "task"
LEFT JOIN "perfectqueue_ticket" AS "ticket" ON "ticket"."task_id" = "task"."id"
WHERE "task"."queue" = %(queue)s AND "task"."key" = %(key)s AND (
    ("ticket"."attempt" = 0 AND "ticket"."token" IN ({marks}))
    OR (
        COALESCE("ticket"."attempt", 1) > 0
        AND "task"."type" = %(type)s AND "task"."user" = %(user)s
        AND "task"."data" = %(data)s AND "task"."priority" = %(priority)s
        AND "task"."created_at" >= {since}
    )
)
"""
OURS = 'SELECT "queue", "key", "id" FROM "perfectqueue_task" WHERE "id" IN ({ids})'


@recalled
def submit(
    tries: Tries,
    submissions: Sequence[Submission],
    *,
    using: str,
    now: datetime | None = None,
) -> dict[tuple[str, str], int]:
    """
    Store tasks; return the ids of those whose key was free, by queue and key.

    A key that is taken, in the database or earlier in the same batch, is passed over.
    Nothing is locked but the new rows.
    """
    if len(submissions) == 1 and dialect_of(using).single_statement:
        return submit_one(tries, submissions[0], using=using, now=now)
    with unit(using) as (cursor, dialect):
        return store_some(cursor, dialect, tries, submissions, now)


def submit_one(
    tries: Tries, task: Submission, *, using: str, now: datetime | None
) -> dict[tuple[str, str], int]:
    """
    Store a task by a statement that commits itself.

    So its id is not known before the commit, and its ticket carries a token until someone
    takes it.
    """
    token, known = new_token(), list(tries.doubtful)
    tries.commits(token)
    with reading(using) as (cursor, dialect):
        fresh = dialect.submit_one(cursor, task, token=token, now=now)
        return fresh or (by_token(cursor, dialect, task, known, now) if known else {})


def by_token(
    cursor: Any, dialect: Dialect, task: Submission, tokens: list[int], now: datetime | None
) -> dict[tuple[str, str], int]:
    """
    Return the task of this key if an earlier try has stored it.

    One that has been taken since is known by its youth, and by what is in it.
    """
    statement = STORED.replace("{marks}", numbers(tokens))
    same = {
        "queue": task.queue,
        "key": task.key,
        "type": task.type,
        "user": task.user,
        "data": task.payload,
        "priority": task.priority,
    }
    since = {"since": -2 * PATIENCE}
    row = dialect.execute(cursor, statement, same, now=now, after=since).fetchone()
    return {(task.queue, task.key): row[0]} if row else {}


@recalled
def submit_all(
    tries: Tries,
    submissions: Sequence[Submission],
    *,
    using: str,
    now: datetime | None = None,
) -> dict[tuple[str, str], int]:
    """
    Store tasks, or none of them; return what submit() does.

    None are stored when one has a key that is taken.
    """
    with unit(using, apart=True) as (cursor, dialect):
        fresh = store_some(cursor, dialect, tries, submissions, now)
        if len(fresh) < len(submissions):
            transaction.set_rollback(True, using=using)
        return fresh


def store_some(
    cursor: Any,
    dialect: Dialect,
    tries: Tries,
    submissions: Sequence[Submission],
    now: datetime | None,
) -> dict[tuple[str, str], int]:
    given, seen = [], set()
    for task in submissions:
        if len(task.payload) > LONG and (why := dialect.too_long(cursor, task.payload)):
            raise InvalidTaskError(f"The data of task '{task.key}' can't be stored: {why}.")
        if (task.queue, task.key) in seen:
            continue
        seen.add((task.queue, task.key))
        given.append(task)
    fresh = dialect.submit(cursor, given, now) if given else {}
    if tries.doubtful:
        fresh |= ours(cursor, dialect, tries, seen - fresh.keys())
    tries.commits(fresh)
    return fresh


def due_lanes(
    submissions: Sequence[Submission], fresh: Mapping[tuple[str, str], int]
) -> dict[int, int]:
    """Return the lanes in which stored tasks wait from now on, each with the first of these."""
    return {
        task.lane: fresh[task.queue, task.key]
        for task in reversed(submissions)
        if task.run_at is None and (task.queue, task.key) in fresh
    }


def ours(
    cursor: Any, dialect: Dialect, tries: Tries, taken: set[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """
    Return which of these keys an earlier try has taken, with the ids of the tasks.

    The ids were drawn for it alone. They are looked for after the inserting, which has
    waited for that try if its commit was still under way.
    """
    ids = numbers(sorted({id_ for note in tries.doubtful for id_ in note.values()}))
    rows = dialect.execute(cursor, OURS.replace("{ids}", ids)).fetchall()
    return {(queue, key): id_ for queue, key, id_ in rows if (queue, key) in taken}


def in_chunks(
    submissions: Iterable[Submission], size: int = CHUNK, letters: int = CHUNK_LETTERS
) -> Iterator[list[Submission]]:
    """
    Yield lists of so many tasks, reading no further than needed.

    A list ends sooner once its payloads are longer than what a server takes as one
    statement: MariaDB closes the connection at 16 MB.
    """
    chunk: list[Submission] = []
    total = 0
    for task in submissions:
        chunk.append(task)
        total += len(task.payload)
        if len(chunk) == size or total >= letters:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
