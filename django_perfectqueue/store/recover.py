"""Take again what a crashed server has forgotten that it was taken."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..models import State
from .accounts import Accounts
from .dialects import Dialect
from .dialects.base import numbers
from .transaction import repeated, unit
from .values import Lease

FORGOTTEN = """
SELECT "task_id", "attempt" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) AND "state" IN (0, 1) ORDER BY "task_id"
"""
RETAKE = """
UPDATE "perfectqueue_ticket"
SET "state" = %(running)s, "attempt" = "attempt" + 1, "holder" = %(holder)s, "alarm_at" = {until}
WHERE "task_id" IN ({ids})
"""


@repeated
def recover(
    leases: Sequence[Lease], *, alive_time: float, using: str, now: datetime | None = None
) -> set[Lease]:
    """Return which of these leases hold again, for so many seconds from now."""
    with unit(using) as (cursor, dialect):
        accounts = Accounts(now)
        back = retake(cursor, dialect, accounts, leases, alive_time=alive_time, now=now)
        accounts.write(cursor, dialect)
    return back


def retake(
    cursor: Any,
    dialect: Dialect,
    accounts: Accounts,
    leases: Sequence[Lease],
    *,
    alive_time: float,
    now: datetime | None,
) -> set[Lease]:
    """
    Take the tickets of leases that were lost with the commit of their acquire.

    That may be where it commits asynchronously. Nothing else leaves a ticket in line with
    one attempt less than its lease: whoever has taken it since, or has given it back, has
    counted one more.
    """
    if not (leases and dialect.asynchronous_commit):
        return set()
    ids = numbers(sorted(lease.task_id for lease in leases))
    statement = FORGOTTEN.replace("{ids}", ids) + dialect.lock_clause()
    found = set(dialect.execute(cursor, statement).fetchall())
    forgotten = {lease for lease in leases if (lease.task_id, lease.attempt - 1) in found}
    for holder in {lease.holder for lease in forgotten}:
        own = sorted(lease.task_id for lease in forgotten if lease.holder == holder)
        values = {"holder": holder, "running": State.RUNNING.value}
        statement = RETAKE.replace("{ids}", numbers(own))
        until = {"until": alive_time}
        dialect.execute(cursor, statement, values, now=now, after=until)
    for lease in forgotten:
        accounts.begin(lease.lane, lease.charge, 1)
    return forgotten
