"""Append what is to be done about dependencies, in the transaction that makes it necessary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connections
from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue.models import DependencyEvent

from ..database.dialects import Dialect
from ..database.transaction import calls_of_others, reading, repeated

NOTE = 'INSERT INTO "perfectqueue_dependencyevent" ("task_id", "kind") VALUES {rows}'
ANY = 'SELECT 1 FROM "perfectqueue_dependencyevent" LIMIT 1'

followers: list[Callable[..., int]] = []
"""What is called, with ``using``, after the commit of a transaction that appended events."""


def note_ended(cursor: Cursor, dialect: Dialect, ids: Iterable[int]) -> None:
    """Append that tasks have ended for which others wait; nothing else is locked."""
    note(cursor, dialect, ids, DependencyEvent.Kind.ENDED)


def note_added(cursor: Cursor, dialect: Dialect, ids: Iterable[int]) -> None:
    """Append that the dependencies of tasks are to be looked at."""
    note(cursor, dialect, ids, DependencyEvent.Kind.ADDED)


def note(cursor: Cursor, dialect: Dialect, ids: Iterable[int], kind: DependencyEvent.Kind) -> None:
    rows = ", ".join(f"({int(task_id)}, {kind.value})" for task_id in ids)
    dialect.execute(cursor, NOTE.replace("{rows}", rows))
    connection: Any = cursor.db
    if not (connection.in_atomic_block or connection.autocommit):
        return  # Django does not say when such a transaction commits: the sweep finds it.
    act, last = Follow(connection.alias), connection.run_on_commit[-1:]
    if not last or last[0][:2] != (set(connection.savepoint_ids), act):
        connection.on_commit(act, robust=True)


@dataclass(frozen=True, slots=True)
class Follow:
    """Acts on the events of a database, after a commit."""

    using: str

    def __call__(self) -> None:
        act_on_events(using=self.using)


def follow(*, using: str, now: datetime | None = None) -> int:
    """Act on the events that are there, if any; return how many."""
    return act_on_events(using=using, now=now) if are_some(using=using) else 0


@repeated
def are_some(*, using: str) -> bool:
    with reading(using) as (cursor, dialect):
        return dialect.execute(cursor, ANY).fetchone() is not None


def act_on_events(*, using: str, now: datetime | None = None) -> int:
    with calls_of_others():
        return sum(act(using=using, now=now) for act in followers)


def follow_uncommitted(*, using: str) -> int:
    """Do so where the commit may never come, as in a TestCase; return how many."""
    connection: Any = connections[using]
    hooks = connection.run_on_commit if connection.in_atomic_block else ()
    return follow(using=using) if any(isinstance(hook[1], Follow) for hook in hooks) else 0
