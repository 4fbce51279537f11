"""What a holder may do with a task besides finishing it: retry, release, fail, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..models import Attempt, Outcome
from .accounts import Accounts
from .bell import ring
from .dialects import Dialect
from .dialects.base import numbers
from .end import CANCELLED, Held, bury, record
from .fence import hold, hold_all
from .transaction import repeated, unit
from .values import Failure, Lease

MOST_ERRORS = 32_767

RETRY = """
UPDATE "perfectqueue_ticket"
SET "state" = 1, "run_at" = {due}, "alarm_at" = {due}, "holder" = NULL,
    "errors" = CASE WHEN "errors" < 32767 THEN "errors" + 1 ELSE "errors" END
WHERE "task_id" = %(task_id)s
"""
RELEASE = """
UPDATE "perfectqueue_ticket" SET "state" = 1, "alarm_at" = {due}, "holder" = NULL
WHERE "task_id" IN ({ids})
"""


@repeated
def retry(
    lease: Lease,
    *,
    wait: float,
    why: Failure,
    seconds: float,
    using: str,
    worker: str = "",
    now: datetime | None = None,
) -> bool:
    """
    Let a task be tried again after so many seconds, and count the error.

    Return whether it will be; it is cancelled where that has been asked for. Raise
    PreemptedError, and write nothing, when the lease has passed on.
    """
    with unit(using) as (cursor, dialect):
        cancel = hold(cursor, dialect, lease)
        accounts = Accounts()
        held = Held.of(lease, worker=worker, seconds=seconds)
        record(cursor, dialect, held, Attempt.Ending.RETRIED, why, now=now)
        if cancel:
            bury(cursor, dialect, held, Outcome.CANCELLED, CANCELLED, now=now)
        else:
            values = {"task_id": lease.task_id}
            dialect.execute(cursor, RETRY, values, now=now, after={"due": wait})
        accounts.end(lease, seconds)
        accounts.write(cursor, dialect)
    if not cancel:
        ring(lease.queue, using=using, delay=wait)
    return not cancel


@repeated
def fail(
    lease: Lease,
    *,
    why: Failure,
    seconds: float,
    using: str,
    worker: str = "",
    now: datetime | None = None,
) -> None:
    """
    End a task as failed, to be kept until someone acts.

    Raise PreemptedError, and write nothing, when the lease has passed on.
    """
    end(
        lease,
        Outcome.FAILED,
        Attempt.Ending.FAILED,
        why,
        seconds=seconds,
        using=using,
        worker=worker,
        now=now,
    )


@repeated
def cancel(
    lease: Lease,
    *,
    seconds: float,
    using: str,
    why: Failure = CANCELLED,
    worker: str = "",
    now: datetime | None = None,
) -> None:
    """
    End a running task as cancelled.

    Raise PreemptedError, and write nothing, when the lease has passed on.
    """
    end(
        lease,
        Outcome.CANCELLED,
        Attempt.Ending.CANCELLED,
        why,
        seconds=seconds,
        using=using,
        worker=worker,
        now=now,
    )


def end(
    lease: Lease,
    status: Outcome,
    ending: Attempt.Ending,
    why: Failure,
    *,
    seconds: float,
    using: str,
    worker: str,
    now: datetime | None,
) -> None:
    with unit(using) as (cursor, dialect):
        hold(cursor, dialect, lease)
        accounts = Accounts()
        held = Held.of(lease, worker=worker, seconds=seconds)
        if status == Outcome.FAILED:
            held = replace(held, errors=min(held.errors + 1, MOST_ERRORS))
        record(cursor, dialect, held, ending, why, now=now)
        bury(cursor, dialect, held, status, why, now=now)
        accounts.end(lease, seconds)
        accounts.write(cursor, dialect)


@repeated
def release(
    leases: Sequence[Lease],
    *,
    using: str,
    delay: float = 0.0,
    now: datetime | None = None,
) -> list[Lease]:
    """
    Give tasks back untried, to be taken again after so many seconds.

    It counts as no attempt and charges nothing. Return those that were refused: the
    lease had passed on. One that is to be cancelled is.
    """
    with unit(using) as (cursor, dialect):
        accounts = Accounts()
        held = hold_all(cursor, dialect, leases)
        let_go(cursor, dialect, [lease for lease in held if not held[lease]], delay, now)
        for lease in (lease for lease in held if held[lease]):
            untried = Held.of(lease, worker="", seconds=None)
            bury(cursor, dialect, untried, Outcome.CANCELLED, CANCELLED, now=now)
        for lease in held:
            accounts.end(lease, None)
        accounts.write(cursor, dialect)
    for queue in {lease.queue for lease in held}:
        ring(queue, using=using, delay=delay)
    return [lease for lease in leases if lease not in held]


def let_go(
    cursor: Any, dialect: Dialect, leases: Sequence[Lease], delay: float, now: datetime | None
) -> None:
    if leases:
        ids = numbers(sorted(lease.task_id for lease in leases))
        statement = RELEASE.replace("{ids}", ids)
        dialect.execute(cursor, statement, now=now, after={"due": delay})
