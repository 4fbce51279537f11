"""Close tasks whose handlers have returned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from .accounts import Account, Accounts
from .dialects import Dialect, dialect_of
from .dialects.base import numbers
from .transaction import reading, repeated, unit
from .values import Completion

WRITTEN = """
SELECT "id", "attempt", "worker" FROM "perfectqueue_task"
WHERE "id" IN ({ids}) AND "outcome" = 'finished' AND "started_at" IS NOT NULL
"""


@repeated
def finish(
    completions: Sequence[Completion],
    *,
    using: str,
    worker: str = "",
    now: datetime | None = None,
) -> list[Completion]:
    """
    Close tasks in one transaction; return those that were refused.

    Refused is what another attempt holds by now, or someone has ended. What this same
    attempt has finished already is not refused: a commit whose answer was lost may be
    repeated.
    """
    if len(completions) == 1 and dialect_of(using).in_one:
        return finish_one(completions[0], using=using, worker=worker, now=now)
    with unit(using) as (cursor, dialect):
        accounts = Accounts()
        refused = close(cursor, dialect, accounts, completions, worker=worker, now=now)
        accounts.write(cursor, dialect)
    return refused


def finish_one(
    done: Completion, *, using: str, worker: str, now: datetime | None
) -> list[Completion]:
    account = Account()
    account.end(done.lease.charge, done.seconds)
    terms: dict[str, Any] = {"worker": worker, "monotonic": time.monotonic(), "now": now}
    with reading(using) as (cursor, dialect):
        if dialect.finish_one(cursor, done, account.entry(done.lease.lane), **terms):
            return []
        return without_written(cursor, dialect, [done], worker)


def close(
    cursor: Any,
    dialect: Dialect,
    accounts: Accounts,
    completions: Sequence[Completion],
    *,
    worker: str,
    now: datetime | None,
) -> list[Completion]:
    ids = dialect.finish(cursor, completions, worker=worker, monotonic=time.monotonic(), now=now)
    for done in completions:
        if done.lease.task_id in ids:
            accounts.end(done.lease, done.seconds)
    missed = [done for done in completions if done.lease.task_id not in ids]
    return without_written(cursor, dialect, missed, worker) if missed else []


def without_written(
    cursor: Any, dialect: Dialect, missed: list[Completion], worker: str
) -> list[Completion]:
    statement = WRITTEN.replace("{ids}", numbers(done.lease.task_id for done in missed))
    written = set(dialect.execute(cursor, statement).fetchall())
    return [
        done for done in missed if (done.lease.task_id, done.lease.attempt, worker) not in written
    ]
