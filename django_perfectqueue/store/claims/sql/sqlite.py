"""On SQLite a claim is a statement for each lane, then two for all: there is one writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.utils import timezone

from ...database.dialects.sqlite import stamp, to_json
from ...database.transaction import Session
from ...leases import LATE, LINE, TASK, TICKET, ClaimedRow, named
from ...values import ClaimRequest
from .only_lane import LANE, ONLY_LANE, Alone, with_lane

CREATED = '"task"."created_at"'
TAKE = """
UPDATE "perfectqueue_ticket"
SET "state" = 2, "attempt" = "attempt" + 1, "holder" = %(holder)s, "token" = %(token)s,
    "timer_at" = %(until)s
WHERE "task_id" IN (SELECT "value" FROM json_each(%(ids)s))
"""

# As expressions, times are not given to Django's converter, which is slow.
READ = f"""
SELECT {TICKET}, "ticket"."run_at" || '+00:00',
    COALESCE({LATE}, 0), {TASK.replace(CREATED, f"{CREATED} || '+00:00'")}
FROM json_each(%(ids)s) AS "given"
JOIN "perfectqueue_ticket" AS "ticket" ON "ticket"."task_id" = "given"."value"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
"""

# CROSS JOIN keeps the order of the tables.
READ_ALONE = f"""
SELECT {TICKET}, "ticket"."run_at" || '+00:00',
    COALESCE({LATE}, 0), {TASK.replace(CREATED, f"{CREATED} || '+00:00'")},
    {LANE}
FROM "perfectqueue_ticket" AS "ticket"
CROSS JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
CROSS JOIN "perfectqueue_account" AS "only" ON "only"."id" = "ticket"."lane"
WHERE "ticket"."state" = 0 AND "ticket"."lane" = {ONLY_LANE}
ORDER BY "ticket"."rank", "ticket"."run_at", "ticket"."task_id" LIMIT %(limit)s
"""

CHARGE = """
UPDATE "perfectqueue_account" SET "running" = "running" + %(tasks)s,
    "virtual_time" = "virtual_time" + %(charge)s / "weight",
    "advance" = "advance" + %(charge)s, "since" = {now}
WHERE "id" = %(lane)s
"""

# Return a time as READ returns it, aware.
aware = datetime.fromisoformat


def claim(
    db: Session, wants: Mapping[int, int], limit: int, request: ClaimRequest, token: int
) -> list[ClaimedRow]:
    picked: list[int] = []
    for lane, count in wants.items():
        if len(picked) == limit:
            break
        some = min(count, limit - len(picked))
        found = db.execute(LINE, {"lane": lane, "count": some}).fetchall()
        picked += [task_id for (task_id,) in found]
    if not picked:
        return []
    ids = take(db, picked, request, token)
    return named(db.execute(READ, {"ids": ids}).fetchall())


def take(db: Session, picked: Sequence[int], request: ClaimRequest, token: int) -> str:
    """Take tickets; return their ids as JSON."""
    ids = to_json(picked)
    until = stamp((db.now or timezone.now()) + timedelta(seconds=request.alive_time))
    values = {"holder": request.holder, "token": token, "until": until, "ids": ids}
    db.execute(TAKE, values)
    return ids


def claim_alone(db: Session, request: ClaimRequest, token: int) -> Alone:
    asked = {"queue": request.queues[0], "limit": request.limit}
    claimed, lane = with_lane(db.execute(READ_ALONE, asked).fetchall())
    if lane is not None:
        take(db, [row.task_id for row in claimed], request, token)
        charge = lane.charge(abs(lane.cost)) * len(claimed)
        values = {"lane": lane.id, "tasks": len(claimed), "charge": charge}
        db.execute(CHARGE, values)
    return [row._replace(attempt=row.attempt + 1) for row in claimed], lane
