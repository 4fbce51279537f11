"""Who may write: the one whose acquire was the last, and no one else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.models import Outcome, State

from ..database.dialects import Dialect
from ..database.dialects.base import numbers
from ..database.transaction import reading, repeated
from ..values import Lease

HELD = """
SELECT "cancel_requested" FROM "perfectqueue_ticket"
WHERE "task_id" = %(task_id)s AND "token" = %(token)s AND "state" = 2
"""
STANDING = """
SELECT "task"."outcome", "task"."started_at", "task"."ended_at", "ticket"."state"
FROM "perfectqueue_task" AS "task"
LEFT JOIN "perfectqueue_ticket" AS "ticket" ON "ticket"."task_id" = "task"."id"
WHERE "task"."id" = %(task_id)s AND "task"."queue" = %(queue)s AND "task"."key" = %(key)s
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
        raise PreemptedError(why_not_held(cursor, dialect, lease))
    return bool(row[0])


@repeated
def refusal(lease: Lease, *, using: str) -> PreemptedError:
    """Return the error for a lease that does not hold; it says in which state the task is."""
    with reading(using) as (cursor, dialect):
        return PreemptedError(why_not_held(cursor, dialect, lease))


def why_not_held(cursor: Any, dialect: Dialect, lease: Lease) -> str:
    who = {"task_id": lease.task_id, "queue": lease.queue, "key": lease.key}
    row = dialect.execute(cursor, STANDING, who).fetchone()
    state = "it was deleted" if row is None else state_of(dialect, *row)
    return f"Task '{lease.key}' is no longer held by this attempt: {state}."


def state_of(
    dialect: Dialect, outcome: str, started_at: Any, ended_at: Any, state: int | None
) -> str:
    """Return in words where a task stands that someone else has taken, ended or put back."""
    if outcome:
        # A forced finish leaves no start.
        by_force = ", by force" if outcome == Outcome.FINISHED and started_at is None else ""
        return f"{outcome} at {dialect.moment(ended_at):%Y-%m-%d %H:%M:%S} UTC{by_force}"
    if state == State.RUNNING:
        return "another attempt has it"
    return "it is in line for another attempt"


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
