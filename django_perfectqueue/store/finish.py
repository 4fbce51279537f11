"""Close tasks whose handlers have returned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from .accounts import Account, Accounts
from .dialects import Dialect, dialect_of
from .dialects.base import numbers
from .lanes import is_gated
from .recover import retake
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
    repeated. Nor is what this attempt holds but for a crash of the server.
    """
    alone = len(completions) == 1 and dialect_of(using).single_statement
    alone = alone and not is_gated(completions[0].lease.lane)
    if alone and finish_one(completions[0], using=using, worker=worker, now=now):
        return []
    with unit(using) as (cursor, dialect):
        accounts = Accounts(now)
        refused = close(cursor, dialect, accounts, completions, worker=worker, now=now)
        accounts.write(cursor, dialect)
    return refused


def finish_one(done: Completion, *, using: str, worker: str, now: datetime | None) -> bool:
    """Close a task by one statement; return whether it was held indeed."""
    account = Account()
    account.end(done.lease, done.seconds)
    entry = account.entry(done.lease.lane)
    terms: dict[str, Any] = {"worker": worker, "monotonic": time.monotonic(), "now": now}
    with reading(using) as (cursor, dialect):
        return dialect.finish_one(cursor, done, entry, **terms)


def close(
    cursor: Any,
    dialect: Dialect,
    accounts: Accounts,
    completions: Sequence[Completion],
    *,
    worker: str,
    now: datetime | None,
) -> list[Completion]:
    terms: dict[str, Any] = {"worker": worker, "monotonic": time.monotonic(), "now": now}
    ids = dialect.finish(cursor, completions, **terms)
    missed = [done for done in completions if done.lease.task_id not in ids]
    refused = without_written(cursor, dialect, missed, worker) if missed else []
    leases = [done.lease for done in refused]
    if back := retake(cursor, dialect, accounts, leases, alive_time=0.0, now=now):
        ids |= dialect.finish(cursor, [done for done in refused if done.lease in back], **terms)
        refused = [done for done in refused if done.lease not in back]
    for done in completions:
        if done.lease.task_id in ids:
            accounts.end(done.lease, done.seconds)
    return refused


def without_written(
    cursor: Any, dialect: Dialect, missed: list[Completion], worker: str
) -> list[Completion]:
    statement = WRITTEN.replace("{ids}", numbers(done.lease.task_id for done in missed))
    written = set(dialect.execute(cursor, statement).fetchall())
    return [
        done for done in missed if (done.lease.task_id, done.lease.attempt, worker) not in written
    ]
