"""Who may write: the holder of the current attempt, and no one else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..exceptions import PreemptedError
from .dialects import Dialect
from .dialects.base import numbers
from .values import Lease

HELD = """
SELECT "cancel_requested" FROM "perfectqueue_ticket"
WHERE "task_id" = %(task_id)s AND "attempt" = %(attempt)s AND "holder" = %(holder)s
    AND "state" = 2
"""
ALL_HELD = """
SELECT "task_id", "attempt", "holder", "cancel_requested" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) AND "state" = 2 ORDER BY "task_id"
"""


def hold(cursor: Any, dialect: Dialect, lease: Lease) -> bool:
    """
    Lock the ticket that this lease holds; return whether its task is to be cancelled.

    Raise PreemptedError, and let nothing be written, when the lease has passed to
    another processor or the task has ended.
    """
    fence = {"task_id": lease.task_id, "attempt": lease.attempt, "holder": lease.holder}
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
    found = {tuple(row[:3]): bool(row[3]) for row in dialect.execute(cursor, statement).fetchall()}
    fences = {lease: (lease.task_id, lease.attempt, lease.holder) for lease in leases}
    return {lease: found[fence] for lease, fence in fences.items() if fence in found}
