"""Delete tasks whose retention has passed, a bounded batch at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..models import Outcome
from .dialects import Dialect
from .dialects.base import numbers
from .transaction import reading, repeated, unit

BATCH = 1000
DONE = Outcome.FINISHED.value

SCAN = """
SELECT "id", "outcome", {over} FROM "perfectqueue_task"
WHERE "id" > %(after)s ORDER BY "id" LIMIT %(limit)s
"""
DOOMED = """
SELECT "id" FROM "perfectqueue_task" WHERE "id" IN ({ids}) AND "outcome" <> '' ORDER BY "id"
"""
FORGET = (
    'DELETE FROM "perfectqueue_attempt" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_journal" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_deadletter" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_task" WHERE "id" IN ({ids})',
)
NEWEST = 'SELECT MAX("id") FROM "perfectqueue_task"'


@dataclass(frozen=True, slots=True)
class Swept:
    """One batch: how many were deleted, and where the next one begins; None at the end."""

    deleted: int
    reached: int | None
    stopped: bool


@repeated
def purge(
    retention: Mapping[str, float | None],
    *,
    using: str,
    after: int = 0,
    keep: int | None = None,
    limit: int = BATCH,
    now: datetime | None = None,
) -> Swept:
    """
    Look at up to ``limit`` tasks behind an id, and delete those whose time has passed.

    ``retention`` gives the seconds that each outcome is kept; None is for ever. With
    ``keep`` a finished task goes, too, once so many tasks are newer. ``stopped`` tells
    that a finished task was met whose time has yet to come: those behind it are mostly
    younger. Rows that someone else holds are passed over.
    """
    with reading(using) as (cursor, dialect):
        rows = scan(cursor, dialect, retention, after, limit, now)
        last = last_over(cursor, dialect, keep)
    finished = [(id_, over or id_ <= last) for id_, outcome, over in rows if outcome == DONE]
    doomed = [id_ for id_, over in finished if over]
    doomed += [id_ for id_, outcome, over in rows if over and outcome != DONE]
    deleted = 0
    if doomed:
        with unit(using) as (cursor, dialect):
            deleted = forget(cursor, dialect, sorted(doomed))
    reached = rows[-1][0] if len(rows) == limit else None
    return Swept(deleted, reached, stopped=not all(over for _id, over in finished))


def scan(
    cursor: Any,
    dialect: Dialect,
    retention: Mapping[str, float | None],
    after: int,
    limit: int,
    now: datetime | None,
) -> list[Any]:
    terms = {name: seconds for name, seconds in retention.items() if seconds is not None}
    over = " OR ".join(f'("outcome" = \'{name}\' AND "ended_at" <= {{{name}}})' for name in terms)
    statement = SCAN.replace("{over}", over or "FALSE")
    since = {name: -seconds for name, seconds in terms.items()}
    values = {"after": after, "limit": limit}
    rows: list[Any] = dialect.execute(cursor, statement, values, now=now, after=since).fetchall()
    return rows


def last_over(cursor: Any, dialect: Dialect, keep: int | None) -> int:
    """Return the largest id that is over the count, or 0."""
    if keep is None:
        return 0
    newest = dialect.execute(cursor, NEWEST).fetchone()[0] or 0
    return int(newest) - keep


def forget(cursor: Any, dialect: Dialect, ids: list[int]) -> int:
    if not ids:
        return 0
    statement = DOOMED.replace("{ids}", numbers(ids)) + dialect.skip_clause()
    locked = [task_id for (task_id,) in dialect.execute(cursor, statement).fetchall()]
    for statement in FORGET:
        dialect.execute(cursor, statement.replace("{ids}", numbers(locked)))
    return len(locked)
