"""Refuse every write under a lease that is not the last one of its task."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.models import LastEnding, Outcome, State

from ..database.dialects import Dialect
from ..database.dialects.base import numbers
from ..database.session import Session
from ..database.transaction import in_transaction, reading, retry_transaction
from ..values import Lease, as_text

STILL_HELD = "running"
BY_HOLDER = (LastEnding.RETRIED, LastEnding.SNOOZED, LastEnding.RELEASED)
"""The endings that the holder of an attempt writes."""

TICKET = """
SELECT "token", "state", "attempt", "last_ending" FROM "perfectqueue_ticket"
WHERE "task_id" = %(task_id)s
"""
# What others end has no start: they don't know when the attempt began.
CLOSED = """
SELECT "outcome" FROM "perfectqueue_task"
WHERE "id" = %(task_id)s AND "queue" = %(queue)s AND "key" = %(key)s
    AND "attempt" = %(attempt)s AND "worker" = %(worker)s AND "started_at" IS NOT NULL
"""
STANDING = """
SELECT "task"."outcome", "task"."started_at", "task"."ended_at", "ticket"."state"
FROM "perfectqueue_task" AS "task"
LEFT JOIN "perfectqueue_ticket" AS "ticket" ON "ticket"."task_id" = "task"."id"
WHERE "task"."id" = %(task_id)s AND "task"."queue" = %(queue)s AND "task"."key" = %(key)s
"""
HELD = """
SELECT "task_id", "token", "cancel_requested", "charged" FROM "perfectqueue_ticket"{hint}
WHERE "task_id" IN ({ids}) AND "state" = 2 ORDER BY "task_id"
"""


# What a ticket says that a lease holds: whether its task is to be cancelled, and how many seconds
# its lane was charged while it ran, if it was.
Held = tuple[bool, float | None]


def lock_lease(db: Session, lease: Lease) -> None:
    """
    Lock the ticket that this lease holds.

    Raise PreemptedError, and let nothing be written, when the lease has passed to
    another processor or the task has ended.
    """
    if not lock_leases(db, [lease]):
        raise PreemptedError(why_not_held(db, lease))


@retry_transaction
def refusal(lease: Lease, *, using: str) -> PreemptedError:
    """Return the error for a lease that does not hold; it says in which state the task is."""
    with reading(using) as db:
        return PreemptedError(why_not_held(db, lease))


def why_not_held(db: Session, lease: Lease) -> str:
    who = {"task_id": lease.task_id, "queue": lease.queue, "key": lease.key}
    row = db.execute(STANDING, who).fetchone()
    state = "it was deleted" if row is None else state_of(db.dialect, *row)
    return f"Task '{lease.key}' is no longer held by this attempt: {state}."


def state_of(
    dialect: Dialect,
    outcome: str,
    started_at: datetime | None,
    ended_at: datetime,
    state: int | None,
) -> str:
    """Return in words where a task stands that someone else has taken, ended or put back."""
    if outcome:
        # A forced finish leaves no start.
        by_force = ", by force" if outcome == Outcome.FINISHED and started_at is None else ""
        return f"{outcome} at {dialect.moment(ended_at):%Y-%m-%d %H:%M:%S} UTC{by_force}"
    if state == State.RUNNING:
        return "another attempt has it"
    return "it is in line for another attempt"


def lock_leases(db: Session, leases: Collection[Lease], clause: str = "") -> dict[Lease, Held]:
    """
    Lock the tickets of the leases that still hold theirs, in the order of their ids;
    return each of these with what its ticket says. ``clause`` may pass over those of others.
    """
    ids = numbers(sorted(lease.task_id for lease in leases))
    held = HELD.replace("{ids}", ids).replace("{hint}", db.dialect.by_primary_key)
    statement = held + (clause or db.dialect.lock_clause)
    rows = db.execute(statement).fetchall()
    found = {(task_id, token): (bool(cancel), charged) for task_id, token, cancel, charged in rows}
    return {lease: found[lease.fence] for lease in leases if lease.fence in found}


@retry_transaction
def outcome_of(lease: Lease, *, using: str, worker: str) -> str:
    """
    Return how its holder, this ``worker``, has ended an attempt: as a word such as "retried".

    It is STILL_HELD while the attempt has its task, and empty where others have ended it, or
    another attempt has gone on since. For one whose commit may have come through without an
    answer: such a commit has the lock of the ticket, and is waited for.
    """
    with in_transaction(using) as db:
        return ending_of(db, lease, worker)


def ending_of(db: Session, lease: Lease, worker: str) -> str:
    """Do what outcome_of() does, in the caller's transaction."""
    statement = TICKET + db.dialect.lock_clause
    row = db.execute(statement, {"task_id": lease.task_id}).fetchone()
    if row is None:
        values = {
            "task_id": lease.task_id,
            "queue": lease.queue,
            "key": lease.key,
            "attempt": lease.attempt,
            "worker": as_text(worker, 255),
        }
        closed = db.execute(CLOSED, values).fetchone()
        return str(closed[0]) if closed else ""
    token, state, attempt, last_ending = row
    if token == lease.token and state == State.RUNNING:
        return STILL_HELD
    # The token stays until the next acquire; while that runs, the ending is of the one before.
    next_runs = state == State.RUNNING and attempt == lease.attempt + 1
    is_its = (token == lease.token or next_runs) and last_ending in BY_HOLDER
    return LastEnding(last_ending).name.lower() if is_its else ""
