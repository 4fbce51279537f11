"""What the clock moves: due tasks, lapsed leases, and lanes that sleep with work in them."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any

from django.db import connections

from ..models import State
from .accounts import Accounts
from .dialects import Dialect
from .dialects.base import Row, Waking, numbers
from .end import lose
from .lanes import FIRST_COST, first_cost
from .shares import Share, shares_of
from .transaction import is_callers, reading, repeated, unit

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
OWNERS = """
SELECT "ticket"."lane", "task"."queue", "task"."user", "lane"."id" IS NULL
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
WHERE "ticket"."task_id" IN ({ids})
"""
SLEEPING = """
WITH RECURSIVE "line" AS ({waiting_lanes})
SELECT (
    SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_lane} ORDER BY "ticket"."rank" LIMIT 1
)
FROM "line" LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "line"."lane"
WHERE "line"."lane" IS NOT NULL AND ("lane"."awake" IS NULL OR "lane"."awake" = FALSE)
LIMIT %(limit)s
"""
FIRST_OPEN = """
SELECT "virtual_time", "cost" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "open" = TRUE ORDER BY "turn" LIMIT 1
"""
LAST_SHUT = """
SELECT "virtual_time", "cost" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "open" = FALSE ORDER BY "turn" DESC LIMIT 1
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
        accounts = Accounts()
        lapsed = [task_id for task_id, _lane, state in rung if state == State.RUNNING]
        back = lose(cursor, dialect, accounts, lapsed, now=now)
        back += [task_id for task_id, _lane, state in rung if state != State.RUNNING]
        accounts.lock(cursor, dialect, (lane for _id, lane, _state in rung))
        admit(cursor, dialect, back)
        accounts.write(cursor, dialect)
        return len(rung)


@repeated
def rouse(*, using: str) -> int:
    """
    Wake the lanes that sleep although they have waiting tickets; return how many.

    A submit marks its ticket when it sees its lane asleep. One that saw it awake and
    committed after the lane had fallen asleep is found here.
    """
    with reading(using) as (cursor, dialect):
        ids = asleep(cursor, dialect)
    if not ids:
        return 0
    with unit(using) as (cursor, dialect):
        return wake(cursor, dialect, ids)


def asleep(cursor: Any, dialect: Dialect) -> list[int]:
    """Return the first waiting ticket of each lane that sleeps."""
    statement = SLEEPING.replace("{waiting_lanes}", dialect.waiting_lanes())
    in_lane = dialect.in_lane.replace("{lane}", '"line"."lane"')
    statement = statement.replace("{in_lane}", in_lane)
    rows = dialect.execute(cursor, statement, {"limit": BATCH}).fetchall()
    return [task_id for (task_id,) in rows if task_id is not None]


def admit(cursor: Any, dialect: Dialect, ids: list[int]) -> None:
    """Let tickets wait in their lanes, and wake those."""
    if ids:
        dialect.execute(cursor, READMIT.replace("{ids}", numbers(sorted(ids))))
        wake(cursor, dialect, ids)


def wake(cursor: Any, dialect: Dialect, ids: list[int]) -> int:
    """
    Wake the lanes of tickets, each at the smallest virtual time of those that are served;
    return how many lanes that is.
    """
    rows = dialect.execute(cursor, OWNERS.replace("{ids}", numbers(ids))).fetchall()
    owners = {lane: (queue, user) for lane, queue, user, _new in rows}
    shares: defaultdict[tuple[str, str], Share] = defaultdict(Share)
    if fresh := {(queue, user) for _lane, queue, user, is_new in rows if is_new}:
        shares.update(shares_of(cursor, dialect, fresh))
    queues = {queue for queue, _user in owners.values()}
    floors = {queue: floor(cursor, dialect, queue) for queue in queues}
    dialect.wake(
        cursor,
        [
            Waking(
                lane=lane,
                queue=queue,
                user=user,
                virtual_time=floors[queue][0],
                cost=floors[queue][1],
                weight=shares[queue, user].weight,
                max_running=shares[queue, user].max_running,
                paused=shares[queue, user].paused,
            )
            for lane, (queue, user) in sorted(owners.items())
        ],
    )
    return len(owners)


def floor(cursor: Any, dialect: Dialect, queue: str) -> tuple[float, float]:
    """
    Return the virtual time at which a lane that wakes takes its place, and what a task of
    a lane that is new is expected to cost.

    The smallest time of those being served; where none is, the largest that was reached,
    so that neither credit nor debt outlives the work that competed.
    """
    for statement in (FIRST_OPEN, LAST_SHUT):
        row: Row | None = dialect.execute(cursor, statement, {"queue": queue}).fetchone()
        if row:
            return row[0], first_cost(row[1])
    return 0.0, FIRST_COST
