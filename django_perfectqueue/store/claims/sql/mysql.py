"""On MySQL and MariaDB a claim locks tickets by SELECT, and writes them by primary key."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import timezone
from operator import methodcaller

from ...database.dialects.base import numbers
from ...database.transaction import Session
from ...leases import LATE, TASK, TICKET, ClaimedRow, named
from ...values import ClaimRequest
from .only_lane import LANE, ONLY_LANE, Alone, with_lane

LINE = """
(SELECT "task_id" FROM "perfectqueue_ticket" FORCE INDEX ("perfectqueue_ticket_line")
WHERE "state" = 0 AND "lane" = {lane}
ORDER BY "rank", "run_at", "task_id" LIMIT {count} FOR UPDATE SKIP LOCKED)
"""

# Where most tickets of a small table are taken, MariaDB 11 would rather lock every row.
TAKE = """
UPDATE "perfectqueue_ticket" FORCE INDEX (PRIMARY)
SET "state" = 2, "attempt" = "attempt" + 1, "holder" = %(holder)s, "token" = %(token)s,
    "timer_at" = {later}
WHERE "task_id" IN ({ids})
"""

READ = f"""
SELECT {TICKET}, "ticket"."run_at",
    COALESCE({LATE}, 0), {TASK}
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
WHERE "ticket"."task_id" IN ({{ids}})
"""

# The tickets are locked by an inner query: one that joins would lock the whole lane to sort it.
LOCK_ALONE = f"""
SELECT {TICKET}, "ticket"."run_at", COALESCE({LATE}, 0), {TASK}, {LANE}
FROM (
    SELECT "task_id" FROM "perfectqueue_ticket" FORCE INDEX ("perfectqueue_ticket_line")
    WHERE "state" = 0 AND "lane" = {ONLY_LANE}
    ORDER BY "rank", "run_at", "task_id" LIMIT %(limit)s FOR UPDATE SKIP LOCKED
) AS "line"
STRAIGHT_JOIN "perfectqueue_ticket" AS "ticket" FORCE INDEX (PRIMARY)
    ON "ticket"."task_id" = "line"."task_id"
STRAIGHT_JOIN "perfectqueue_task" AS "task" FORCE INDEX (PRIMARY)
    ON "task"."id" = "line"."task_id"
STRAIGHT_JOIN "perfectqueue_account" AS "only" FORCE INDEX (PRIMARY)
    ON "only"."id" = "ticket"."lane"
FOR UPDATE SKIP LOCKED
"""

TAKE_ALONE = """
UPDATE "perfectqueue_ticket" AS "ticket" FORCE INDEX (PRIMARY)
STRAIGHT_JOIN "perfectqueue_account" AS "lane" FORCE INDEX (PRIMARY) ON "lane"."id" = %(lane)s
SET "ticket"."state" = 2, "ticket"."attempt" = "ticket"."attempt" + 1,
    "ticket"."holder" = %(holder)s, "ticket"."token" = %(token)s,
    "ticket"."timer_at" = {later}, "lane"."running" = "lane"."running" + %(tasks)s,
    "lane"."virtual_time" = "lane"."virtual_time" + %(charge)s / "lane"."weight",
    "lane"."advance" = "lane"."advance" + %(charge)s,
    "lane"."since" = {now}
WHERE "ticket"."task_id" IN ({ids})
"""

aware = methodcaller("replace", tzinfo=timezone.utc)


def claim(
    db: Session, wants: Mapping[int, int], limit: int, request: ClaimRequest, token: int
) -> list[ClaimedRow]:
    picked = lock_lines(db, wants, limit)
    if not picked:
        return []
    ids, later = numbers(sorted(picked)), db.dialect.later("%(seconds)s")
    values = {"holder": request.holder, "token": token, "seconds": request.alive_time}
    db.execute(TAKE, values, later=later, ids=ids)
    return named(db.rows(READ + db.dialect.current_clause(db.cursor), ids=ids))


def claim_alone(db: Session, request: ClaimRequest, token: int) -> Alone:
    asked = {"queue": request.queues[0], "limit": request.limit}
    claimed, lane = with_lane(db.rows(LOCK_ALONE, asked))
    if lane is None:
        return [], None
    values = {
        "holder": request.holder,
        "token": token,
        "seconds": request.alive_time,
        "lane": lane.id,
        "tasks": len(claimed),
        "charge": lane.charge(abs(lane.cost)) * len(claimed),
    }
    ids, later = [row.task_id for row in claimed], db.dialect.later("%(seconds)s")
    done = db.execute(TAKE_ALONE, values, later=later, ids=ids)
    # Nothing is written where the lane was deleted meanwhile.
    taken = claimed if done.rowcount else []
    return [row._replace(attempt=row.attempt + 1) for row in taken], lane


def lock_lines(db: Session, wants: Mapping[int, int], limit: int) -> list[int]:
    """Lock waiting tickets, of so many lanes at once as the earlier ones let expect."""
    picked: list[int] = []
    lanes, asked = deque(wants.items()), 0
    while lanes and len(picked) < limit:
        share = max(len(picked), 1) / asked if asked else 1.0
        lines, wanted = [], (limit - len(picked)) / share
        while lanes and wanted > 0:
            lane, count = lanes.popleft()
            lines.append(LINE.format(lane=int(lane), count=int(count)))
            asked += count
            wanted -= count
        rows = db.execute(" UNION ALL ".join(lines)).fetchall()
        picked += [task_id for (task_id,) in rows[: limit - len(picked)]]
    return picked
