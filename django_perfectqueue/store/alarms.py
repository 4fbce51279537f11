"""What the clock moves: due tasks, lapsed leases, and lanes that sleep with work in them."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from django.db import connections

from ..conf import OTHERS, options
from ..models import State
from .accounts import Accounts
from .dialects import Dialect
from .dialects.base import numbers
from .dozing import rounds, slept_lately
from .end import lose
from .holds import open_all_shut
from .policies import rule_of
from .transaction import is_callers, reading, repeated, unit
from .waking import owners_of, wake

BATCH = 500
BATCHES = 4

RINGING = """
SELECT 1 FROM "perfectqueue_ticket" WHERE "alarm_at" <= {now} ORDER BY "alarm_at" LIMIT 1
"""
RUNG = """
SELECT "task_id", "lane", "state"{asynchronous_commit} FROM "perfectqueue_ticket"
WHERE "alarm_at" <= {now} ORDER BY "alarm_at" LIMIT %(limit)s
"""
READMIT = """
UPDATE "perfectqueue_ticket" SET "state" = 0, "alarm_at" = NULL WHERE "task_id" IN ({ids})
"""
SLEEPING = """
WITH RECURSIVE "line" AS ({waiting_lanes})
SELECT (
    SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_lane} ORDER BY "ticket"."rank" LIMIT 1
)
FROM "line" LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "line"."lane"
LEFT JOIN "perfectqueue_lane" AS "own" ON "own"."id" = "lane"."account"
WHERE "line"."lane" IS NOT NULL AND (
    "lane"."running" <> "own"."running" OR
    "lane"."awake" IS NULL OR "lane"."awake" = FALSE OR "lane"."policy" <> {policy}
)
LIMIT %(limit)s
"""
SLEPT = """
SELECT (
    SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_lane} ORDER BY "ticket"."rank" LIMIT 1
)
FROM "perfectqueue_lane" AS "lane" WHERE "lane"."id" IN ({lanes}) AND "lane"."awake" = FALSE
"""


def answer_alarms(*, using: str, now: datetime | None = None) -> bool:
    """
    Do what is due: admit scheduled tasks, take back lapsed leases, wake lanes.

    Do so much of it and no more; return whether some is left. Costs one index look-up
    when nothing is due.
    """
    return ringing(using=using, now=now) and answer_ringing(using=using, now=now)


def answer_ringing(*, using: str, now: datetime | None = None) -> bool:
    """Do the same where an alarm is known to ring."""
    return all(answer_batch(using=using, now=now) == BATCH for _ in range(BATCHES))


@repeated
def ringing(*, using: str, now: datetime | None) -> bool:
    with reading(using) as (cursor, dialect):
        return dialect.execute(cursor, RINGING, now=now).fetchone() is not None


@repeated
def answer_batch(*, using: str, now: datetime | None) -> int:
    lasting = is_callers(connections[using])
    with unit(using) as (cursor, dialect):
        statement = RUNG.replace(
            "{asynchronous_commit}", "" if lasting else dialect.asynchronous_commit
        )
        statement += dialect.skip_clause()
        rows = dialect.execute(cursor, statement, {"limit": BATCH}, now=now).fetchall()
        rung = [row[:3] for row in rows]
        accounts = Accounts(now)
        lapsed = [task_id for task_id, _lane, state in rung if state == State.RUNNING]
        back = lose(cursor, dialect, accounts, lapsed, now=now)
        back += [task_id for task_id, _lane, state in rung if state != State.RUNNING]
        admit(cursor, dialect, back, accounts)
        accounts.write(cursor, dialect)
        return len(rung)


@repeated
def rouse(*, using: str) -> int:
    """
    Wake the lanes that sleep although they have waiting tickets, those that have another
    policy than the settings say, and those behind a gate whose copy of their account is
    old: it was made while the account was charged. Have limits looked at that hold back
    lanes and have room, too: they were edited past the models' signals. Return how many.

    A submit marks its ticket when it sees its lane asleep. One that saw it awake and
    committed after the lane had fallen asleep is found here.
    """
    opened = open_all_shut(using=using)
    with reading(using) as (cursor, dialect):
        ids = asleep(cursor, dialect)
    if not ids:
        return opened
    with unit(using) as (cursor, dialect):
        return opened + wake(cursor, dialect, owners_of(cursor, dialect, ids), None)


def rouse_in_turn(*, using: str, now: datetime | None) -> int:
    """
    Do so for what this process may have put to sleep too soon; and now and then for all.

    rouse() goes through all lanes that have waiting tickets, also those of users who are
    paused. So an acquire that finds nothing leaves that to the janitor, but for a minute
    and more, and looks only at lanes which it has put to sleep itself within a minute. By a
    time that the caller gave, marks may not be due that were made by another clock; so then
    it looks at all.
    """
    if now is not None:
        return rouse(using=using)
    if woken := rouse_slept(using=using):
        return woken
    if not rounds[using].are_due():
        return 0
    began = time.monotonic()
    woken = rouse(using=using)
    rounds[using].began(began)
    return woken


@repeated
def rouse_slept(*, using: str) -> int:
    lanes = slept_lately(using)
    if not lanes:
        return 0
    with reading(using) as (cursor, dialect):
        statement = SLEPT.replace("{lanes}", numbers(lanes))
        in_lane = dialect.in_lane.replace("{lane}", '"lane"."id"')
        rows = dialect.execute(cursor, statement.replace("{in_lane}", in_lane)).fetchall()
        ids = [task_id for (task_id,) in rows if task_id is not None]
    if not ids:
        return 0
    with unit(using) as (cursor, dialect):
        return wake(cursor, dialect, owners_of(cursor, dialect, ids), None)


def asleep(cursor: Any, dialect: Dialect) -> list[int]:
    """Return the first waiting ticket of each lane that is to be woken."""
    policy, names = policies()
    statement = SLEEPING.replace("{waiting_lanes}", dialect.waiting_lanes())
    statement = statement.replace("{policy}", policy)
    in_lane = dialect.in_lane.replace("{lane}", '"line"."lane"')
    statement = statement.replace("{in_lane}", in_lane)
    rows = dialect.execute(cursor, statement, {"limit": BATCH, **names}).fetchall()
    return [task_id for (task_id,) in rows if task_id is not None]


def policies() -> tuple[str, dict[str, str]]:
    """Return the SQL of the policy that a lane should have, and its parameters."""
    queues = options().queues_with_policy()
    if not queues:
        return str(rule_of(OTHERS).code.value), {}
    names = {f"queue{number}": queue for number, queue in enumerate(queues)}
    cases = (f"WHEN %({name})s THEN {rule_of(queue).code}" for name, queue in names.items())
    return f'CASE "lane"."queue" {" ".join(cases)} ELSE {rule_of(OTHERS).code} END', names


def admit(cursor: Any, dialect: Dialect, ids: list[int], accounts: Accounts) -> None:
    """Let tickets wait in their lanes, and wake those; lock first what is to be charged."""
    owners = owners_of(cursor, dialect, ids) if ids else []
    if owners:
        accounts.gated = any(owner.copied or owner.keys for owner in owners)
    accounts.lock(cursor, dialect, {owner.account for owner in owners})
    if ids:
        dialect.execute(cursor, READMIT.replace("{ids}", numbers(sorted(ids))))
        wake(cursor, dialect, owners, accounts.now)
