"""Store tasks, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from django.db import transaction

from .dialects import dialect_of
from .lanes import lane_id
from .transaction import reading, repeated, unit
from .values import Submission

CHUNK = 1000
CHUNK_LETTERS = 4 * 1024 * 1024


@repeated
def submit(
    submissions: Sequence[Submission], *, using: str, now: datetime | None = None
) -> dict[tuple[str, str], int]:
    """
    Store tasks; return the ids of those whose key was free, by queue and key.

    A key that is taken, in the database or earlier in the same batch, is passed over.
    Nothing is locked but the new rows.
    """
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
    opened = reading(using) if dialect_of(using).in_one else unit(using)
    with opened as (cursor, dialect):
        return dialect.submit(cursor, given, now) if given else {}


@repeated
def submit_all(
    submissions: Sequence[Submission], *, using: str, now: datetime | None = None
) -> dict[tuple[str, str], int]:
    """
    Store tasks, or none of them; return what submit() does.

    None are stored when one has a key that is taken.
    """
    with unit(using, apart=True):
        fresh = submit(submissions, using=using, now=now)
        if len(fresh) < len(submissions):
            transaction.set_rollback(True, using=using)
        return fresh


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
