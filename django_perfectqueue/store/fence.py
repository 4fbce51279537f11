"""Who may write: the one whose acquire was the last, and no one else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..exceptions import PreemptedError
from .dialects import Dialect
from .dialects.base import numbers
from .values import Lease

HELD = """
SELECT "cancel_requested" FROM "perfectqueue_ticket"
WHERE "task_id" = %(task_id)s AND "token" = %(token)s AND "state" = 2
"""
ALL_HELD = """
SELECT "task_id", "token", "cancel_requested" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) AND "state" = 2 ORDER BY "task_id"
"""


def hold(cursor: Any, dialect: Dialect, lease: Lease) -> bool:
    """
    Lock the ticket that this lease holds; return whether its task is to be cancelled.

    Raise PreemptedError, and let nothing be written, when the lease has passed to
    another processor or the task has ended.
    """
    fence = {"task_id": lease.task_id, "token": lease.token}
    row = dialect.execute(cursor, HELD + dialect.lock_clause(), fence).fetchone()
    if row is None:
        raise PreemptedError(
            f"Task '{lease.key}' is no longer held by attempt {lease.attempt}:"
            " its lease ran out, or someone ended it."
        )
    return bool(row[0])


def hold_all(cursor: Any, dialect: Dialect, leases: Sequence[Lease]) -> dict[Lease, bool]:
    """
    Lock the tickets of the leases that still hold theirs, in the order of their ids;
    return each of these with whether its task is to be cancelled.
    """
    ids = numbers(sorted(lease.task_id for lease in leases))
    statement = ALL_HELD.replace("{ids}", ids) + dialect.lock_clause()
    rows = dialect.execute(cursor, statement).fetchall()
    found = {(task_id, token): bool(cancel) for task_id, token, cancel in rows}
    return {lease: found[lease.fence] for lease in leases if lease.fence in found}
