"""What a holder may do with a task besides finishing it: retry, release, fail, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django_perfectqueue import signals
from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.models import Attempt, Outcome

from ..database.dialects import Dialect
from ..database.dialects.base import numbers
from ..database.transaction import Tries, recalled, unit
from ..lanes.accounts import Accounts
from ..leases.fence import hold, hold_all
from ..notify.ring import ring
from ..notify.signals import announce
from ..values import Failure, Lease
from .close import CANCELLED, MOST_COUNTED, Held, bury, record

RETRY = """
UPDATE "perfectqueue_ticket"
SET "state" = 1, "alarm_at" = {due}, "holder" = NULL, "run_at" = COALESCE((
        SELECT "expected_at" FROM "perfectqueue_task" WHERE "id" = %(task_id)s
    ), {due}),
    "errors" = CASE WHEN "errors" < 32767 THEN "errors" + 1 ELSE "errors" END
WHERE "task_id" = %(task_id)s
"""
SNOOZE = """
UPDATE "perfectqueue_ticket"
SET "state" = 1, "alarm_at" = {due}, "holder" = NULL, "run_at" = COALESCE((
        SELECT "expected_at" FROM "perfectqueue_task" WHERE "id" = %(task_id)s
    ), {due})
WHERE "task_id" = %(task_id)s
"""
RELEASE = """
UPDATE "perfectqueue_ticket" SET "state" = 1, "alarm_at" = {due}, "holder" = NULL
WHERE "task_id" IN ({ids})
"""


RECORDED = """
SELECT 1 FROM "perfectqueue_attempt"
WHERE "task_id" = %(task_id)s AND "number" = %(attempt)s AND "ending" = %(ending)s
"""
CLOSED_BY = """
SELECT 1 FROM "perfectqueue_task"
WHERE "id" = %(task_id)s AND "attempt" = %(attempt)s AND "outcome" = %(outcome)s
"""
TRACE = """
SELECT 1 FROM "perfectqueue_attempt" WHERE "task_id" = %(task_id)s AND "number" = %(attempt)s
"""


@recalled
def retry(
    tries: Tries,
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
        try:
            cancel = hold(cursor, dialect, lease)
        except PreemptedError:
            if was_ended(cursor, dialect, tries, lease, Attempt.Ending.RETRIED):
                return not was_closed(cursor, dialect, lease, Outcome.CANCELLED)
            raise
        accounts = Accounts(now)
        held = Held.of(lease, worker=worker, seconds=seconds)
        record(cursor, dialect, held, Attempt.Ending.RETRIED, why, now=now)
        if cancel:
            bury(cursor, dialect, held, Outcome.CANCELLED, CANCELLED, now=now)
        else:
            values = {"task_id": lease.task_id}
            dialect.execute(cursor, RETRY, values, now=now, after={"due": wait})
        accounts.end(lease, seconds)
        accounts.write(cursor, dialect)
        tries.commits(lease)
    if not cancel:
        ring(lease.queue, using=using, delay=wait)
    return not cancel


@recalled
def fail(
    tries: Tries,
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
        tries,
        lease,
        Outcome.FAILED,
        Attempt.Ending.FAILED,
        why,
        seconds=seconds,
        using=using,
        worker=worker,
        now=now,
    )


@recalled
def cancel(
    tries: Tries,
    lease: Lease,
    *,
    seconds: float,
    using: str,
    why: Failure = CANCELLED,
    grave: Failure | None = None,
    worker: str = "",
    now: datetime | None = None,
) -> None:
    """
    End a running task as cancelled; ``why`` tells of the attempt, ``grave`` of the task.

    Raise PreemptedError, and write nothing, when the lease has passed on.
    """
    end(
        tries,
        lease,
        Outcome.CANCELLED,
        Attempt.Ending.CANCELLED,
        why,
        grave=grave,
        seconds=seconds,
        using=using,
        worker=worker,
        now=now,
    )


def end(
    tries: Tries,
    lease: Lease,
    status: Outcome,
    ending: Attempt.Ending,
    why: Failure,
    *,
    seconds: float,
    using: str,
    worker: str,
    now: datetime | None,
    grave: Failure | None = None,
) -> None:
    with unit(using) as (cursor, dialect):
        try:
            hold(cursor, dialect, lease)
        except PreemptedError:
            if was_ended(cursor, dialect, tries, lease, ending):
                return
            raise
        accounts = Accounts(now)
        held = Held.of(lease, worker=worker, seconds=seconds)
        if status == Outcome.FAILED:
            held = replace(held, errors=min(held.errors + 1, MOST_COUNTED))
        record(cursor, dialect, held, ending, why, now=now)
        bury(cursor, dialect, held, status, grave or why, now=now)
        accounts.end(lease, seconds)
        accounts.write(cursor, dialect)
        tries.commits(lease)


def was_ended(
    cursor: Any, dialect: Dialect, tries: Tries, lease: Lease, ending: Attempt.Ending
) -> bool:
    """Tell whether an earlier try, whose answer was lost, has ended this attempt so."""
    values = {"task_id": lease.task_id, "attempt": lease.attempt, "ending": ending.value}
    return lease in tries.doubtful and bool(dialect.execute(cursor, RECORDED, values).fetchone())


def was_closed(cursor: Any, dialect: Dialect, lease: Lease, outcome: Outcome) -> bool:
    """Tell whether a task has ended so with this attempt as its last."""
    values = {"task_id": lease.task_id, "attempt": lease.attempt, "outcome": outcome.value}
    return bool(dialect.execute(cursor, CLOSED_BY, values).fetchone())


@recalled
def snooze(
    tries: Tries,
    lease: Lease,
    *,
    wait: float,
    seconds: float,
    using: str,
    now: datetime | None = None,
) -> bool:
    """
    Put a task off for so many seconds; it counts as no attempt, but its lane is charged.

    Return whether it will run again; it is cancelled where that has been asked for. Raise
    PreemptedError, and write nothing, when the lease has passed on.
    """
    with unit(using) as (cursor, dialect):
        try:
            cancel = hold(cursor, dialect, lease)
        except PreemptedError:
            if was_released(cursor, dialect, tries, lease):
                return not was_closed(cursor, dialect, lease, Outcome.CANCELLED)
            raise
        accounts = Accounts(now)
        if cancel:
            held = Held.of(lease, worker="", seconds=None)
            bury(cursor, dialect, held, Outcome.CANCELLED, CANCELLED, now=now)
        else:
            values = {"task_id": lease.task_id}
            dialect.execute(cursor, SNOOZE, values, now=now, after={"due": wait})
        accounts.end(lease, seconds)
        accounts.write(cursor, dialect)
        tries.commits(lease)
    if not cancel:
        ring(lease.queue, using=using, delay=wait)
    return not cancel


@recalled
def release(
    tries: Tries,
    leases: Sequence[Lease],
    *,
    using: str,
    delay: float = 0.0,
    seconds: float | None = None,
    cancelled: list[Lease] | None = None,
    now: datetime | None = None,
) -> list[Lease]:
    """
    Give tasks back, to be taken again after so many seconds; this counts as no attempt.

    ``seconds`` is for how long they have run, which is charged; None is for tasks that were
    not begun, and charges nothing. Return those that were refused: the lease had passed
    on. One that is to be cancelled is; a caller who tells of that by itself gives a list,
    to which these are added.
    """
    with unit(using) as (cursor, dialect):
        accounts = Accounts(now)
        held = hold_all(cursor, dialect, leases)
        let_go(cursor, dialect, [lease for lease in held if not held[lease]], delay, now)
        unwanted = [lease for lease in held if held[lease]]
        for lease in unwanted:
            untried = Held.of(lease, worker="", seconds=None)
            bury(cursor, dialect, untried, Outcome.CANCELLED, CANCELLED, now=now)
        if cancelled is None:
            announce(signals.task_cancelled, unwanted, using=using)
        else:
            cancelled += unwanted
        for lease in held:
            accounts.end(lease, seconds)
        accounts.write(cursor, dialect)
        missed = [lease for lease in leases if lease not in held]
        refused = [lease for lease in missed if not was_released(cursor, dialect, tries, lease)]
        tries.doubtful += [lease for lease in leases if lease not in refused]
    for queue in {lease.queue for lease in held}:
        ring(queue, using=using, delay=delay)
    return refused


def let_go(
    cursor: Any, dialect: Dialect, leases: Sequence[Lease], delay: float, now: datetime | None
) -> None:
    if leases:
        ids = numbers(sorted(lease.task_id for lease in leases))
        statement = RELEASE.replace("{ids}", ids)
        dialect.execute(cursor, statement, now=now, after={"due": delay})


def was_released(cursor: Any, dialect: Dialect, tries: Tries, lease: Lease) -> bool:
    """
    Tell whether an earlier try, whose answer was lost, has released this lease.

    That alone leaves no trace: whatever else may have ended the attempt since does.
    """
    values = {"task_id": lease.task_id, "attempt": lease.attempt}
    return (
        lease in tries.doubtful
        and not dialect.execute(cursor, TRACE, values).fetchone()
        and not was_closed(cursor, dialect, lease, Outcome.FINISHED)
    )
