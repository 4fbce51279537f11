"""End a task otherwise than by finishing it, or let it go for another attempt."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from django_perfectqueue import signals
from django_perfectqueue.backoff import next_wait
from django_perfectqueue.conf import options
from django_perfectqueue.models import Attempt, Outcome

from ..database.dialects import Dialect
from ..database.dialects.base import numbers
from ..lanes.accounts import REACHED, Accounts, expected_cost
from ..notify.signals import announce, announce_ids
from ..values import Failure, Lease, as_text

MOST_COUNTED = 32_767
NONE_KNOWN: Mapping[int, float] = MappingProxyType({})

CLOSE = """
UPDATE "perfectqueue_task"
SET "outcome" = %(status)s, "attempt" = %(attempt)s, "worker" = %(worker)s,
    "started_at" = {started_at}, "ended_at" = {now}
WHERE "id" = %(task_id)s
"""
BURY = """
INSERT INTO "perfectqueue_deadletter"
    ("task_id", "status", "group", "message", "errors", "crashes", "ended_at")
VALUES (%(task_id)s, %(status)s, %(group)s, %(message)s, %(errors)s, %(crashes)s, {now})
"""
RECORD = """
INSERT INTO "perfectqueue_attempt" (
    "task_id", "number", "ending", "worker", "started_at", "ended_at", "error", "message",
    "traceback"
) VALUES (
    %(task_id)s, %(number)s, %(ending)s, %(worker)s, {started_at}, {now}, %(error)s,
    %(message)s, %(traceback)s
)
"""
AFTER_FIRST = """
SELECT "id", "omitted" FROM "perfectqueue_attempt" WHERE "task_id" = %(task_id)s
ORDER BY "id" LIMIT 1000 OFFSET %(first)s
"""
OMIT = (
    'DELETE FROM "perfectqueue_attempt" WHERE "id" IN ({ids})',
    'UPDATE "perfectqueue_attempt" SET "omitted" = %(omitted)s WHERE "id" = %(next)s',
)
LOST = f"""
SELECT "task_id", "attempt", "lane", "errors", "crashes", "cancel_requested", (
        SELECT "cost" FROM "perfectqueue_lane" WHERE "id" = "perfectqueue_ticket"."lane"
    ), {REACHED}
FROM "perfectqueue_ticket" WHERE "task_id" IN ({{ids}})
"""
LET_GO = """
UPDATE "perfectqueue_ticket"
SET "holder" = NULL,
    "crashes" = CASE WHEN "crashes" < 32767 THEN "crashes" + 1 ELSE "crashes" END
WHERE "task_id" IN ({ids})
"""
PUT_OFF = """
UPDATE "perfectqueue_ticket"
SET "state" = 1, "alarm_at" = {due}, "holder" = NULL, "run_at" = COALESCE((
        SELECT "expected_at" FROM "perfectqueue_task" WHERE "id" = %(task_id)s
    ), {due}),
    "crashes" = CASE WHEN "crashes" < 32767 THEN "crashes" + 1 ELSE "crashes" END
WHERE "task_id" = %(task_id)s
"""

CANCELLED = Failure(error="cancelled", message="Someone asked for it.")
EXPIRED = Failure(error="expired", message="Its time had passed before it could start.")
LAPSED = Failure(error="lost", message="The lease ran out: its processor or host went away.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One attempt as its end is written: whose it is and how it went."""

    task_id: int
    attempt: int
    errors: int
    crashes: int
    worker: str = ""
    seconds: float | None = None

    @classmethod
    def of(cls, lease: Lease, *, worker: str, seconds: float | None) -> Held:
        return cls(
            task_id=lease.task_id,
            attempt=lease.attempt,
            errors=lease.errors,
            crashes=lease.crashes,
            worker=worker,
            seconds=seconds,
        )

    @property
    def after(self) -> dict[str, float | None]:
        return {"started_at": None if self.seconds is None else -self.seconds}


def bury(
    cursor: Any,
    dialect: Dialect,
    held: Held,
    status: Outcome,
    why: Failure,
    *,
    now: datetime | None,
) -> None:
    """Take a task out of the line for good, and lay it where it will be looked for."""
    dialect.remove(cursor, held.task_id)
    values = {
        "task_id": held.task_id,
        "status": status.value,
        "attempt": held.attempt,
        "worker": as_text(held.worker, 255),
        "group": as_text(why.error, 255),
        "message": as_text(why.message, 10_000),
        "errors": held.errors,
        "crashes": held.crashes,
    }
    dialect.execute(cursor, CLOSE, values, now=now, after=held.after)
    dialect.execute(cursor, BURY, values, now=now)


def record(
    cursor: Any,
    dialect: Dialect,
    held: Held,
    ending: Attempt.Ending,
    why: Failure,
    *,
    now: datetime | None,
) -> None:
    """Keep what became of an attempt that did not finish its task."""
    values = {
        "task_id": held.task_id,
        "number": held.attempt,
        "ending": ending.value,
        "worker": as_text(held.worker, 255),
        "error": as_text(why.error, 255),
        "message": as_text(why.message, 10_000),
        "traceback": as_text(why.traceback, 100_000),
    }
    dialect.execute(cursor, RECORD, values, now=now, after=held.after)
    if held.attempt > options().ATTEMPTS_KEPT:
        omit(cursor, dialect, held.task_id, options().ATTEMPTS_KEPT)


def omit(cursor: Any, dialect: Dialect, task_id: int, keep: int) -> None:
    """Keep the first and the last attempts of a task, so many in all; note how many are gone."""
    first = keep // 2
    values = {"task_id": task_id, "first": first}
    rows = dialect.execute(cursor, AFTER_FIRST, values).fetchall()
    gone, left = rows[: first - keep], rows[first - keep :]
    if gone:
        told = {"omitted": sum(1 + omitted for _id, omitted in gone) + left[0][1]}
        for statement in OMIT:
            statement = statement.replace("{ids}", numbers(id_ for id_, _omitted in gone))
            dialect.execute(cursor, statement, {**told, "next": left[0][0]})


def expire(
    cursor: Any, dialect: Dialect, accounts: Accounts, lease: Lease, *, now: datetime | None
) -> None:
    """End a task that was taken too late to be run."""
    held = Held.of(lease, worker="", seconds=None)
    bury(cursor, dialect, held, Outcome.EXPIRED, EXPIRED, now=now)
    accounts.end(lease, None)
    announce(signals.task_expired, [lease], using=lease.using)


def lose(
    cursor: Any,
    dialect: Dialect,
    accounts: Accounts,
    ids: Sequence[int],
    *,
    now: datetime | None,
    seconds: Mapping[int, float] = NONE_KNOWN,
    worker: str = "",
    why: Failure = LAPSED,
) -> list[int]:
    """
    Take running tasks from a holder that is gone; the caller has locked their tickets.

    Return those that may be tried again at once. One that was to be cancelled is, and one
    that has lost its processor too often is failed: it may well be what kills them. From
    the second time on it waits before it is tried again. ``seconds`` is for how long each
    has run, where that is known.
    """
    if not ids:
        return []
    back = []
    cancelled, failed = [], []
    statement = LOST.replace("{ids}", numbers(sorted(ids))) + dialect.current_clause(cursor)
    rows = dialect.execute(cursor, statement).fetchall()
    for task_id, attempt, lane, errors, crashes, cancel_requested, cost, reached in rows:
        crashes = min(crashes + 1, MOST_COUNTED)
        held = Held(task_id=task_id, attempt=attempt, errors=errors, crashes=crashes, worker=worker)
        took = seconds.get(task_id)
        accounts.lose(lane, charge=expected_cost(cost), seconds=took, reached=reached)
        record(cursor, dialect, held, Attempt.Ending.LOST, why, now=now)
        if cancel_requested:
            bury(cursor, dialect, held, Outcome.CANCELLED, CANCELLED, now=now)
            cancelled.append(task_id)
        elif held.crashes >= options().MAX_CRASHES:
            bury(cursor, dialect, held, Outcome.FAILED, why, now=now)
            failed.append(task_id)
        elif wait := wait_after_crash(held.crashes):
            due = {"due": wait}
            dialect.execute(cursor, PUT_OFF, {"task_id": task_id}, now=now, after=due)
        else:
            back.append(task_id)
    if back:
        dialect.execute(cursor, LET_GO.replace("{ids}", numbers(sorted(back))))
    lost = [task_id for task_id, *_rest in rows]
    steps = (
        (signals.task_lost, lost),
        (signals.task_cancelled, cancelled),
        (signals.task_failed, failed),
    )
    announce_ids(cursor, dialect, steps)
    return back


def wait_after_crash(crashes: int) -> float:
    """
    Return the seconds until a task that has lost its processor so often is tried again.

    Once may be anyone's fault; twice, and the task may be what kills its processors.
    """
    if crashes <= 1:
        return 0.0
    first, longest = options().RETRY_WAIT, options().RETRY_WAIT_LIMIT
    return next_wait(crashes - 1, first=first, longest=longest, chance=random.random())  # noqa: S311
