"""Who may write: the holder of the current attempt, and no one else."""

from __future__ import annotations

from typing import Any

from ..exceptions import PreemptedError
from .dialects import Dialect
from .values import Lease

HELD = """
SELECT "cancel_requested" FROM "perfectqueue_ticket"
WHERE "task_id" = %(task_id)s AND "attempt" = %(attempt)s AND "holder" = %(holder)s
    AND "state" = 2
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
