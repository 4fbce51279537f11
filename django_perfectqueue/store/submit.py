"""Store tasks, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from .dialects import Dialect
from .dialects.base import numbers
from .lanes import lane_id
from .transaction import Tries, recalled, unit
from .values import Submission

CHUNK = 1000
CHUNK_LETTERS = 4 * 1024 * 1024

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
    with unit(using) as (cursor, dialect):
        return store_some(cursor, dialect, tries, submissions, now)


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
    with unit(using) as (cursor, dialect), transaction.atomic(using=using):
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
    given, seen, marked = [], set(), set()
    for task in submissions:
        if (task.queue, task.key) in seen:
            continue
        seen.add((task.queue, task.key))
        lane = lane_id(task.queue, task.user)
        mark = lane not in marked
        if task.run_at is None:
            marked.add(lane)
        given.append((task, lane, mark))
    fresh = dialect.submit(cursor, given, now) if given else {}
    if tries.doubtful:
        fresh |= ours(cursor, dialect, tries, seen - fresh.keys())
    tries.commits(fresh)
    return fresh


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
