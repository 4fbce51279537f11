"""On PostgreSQL a claim is one statement."""

from __future__ import annotations

from collections.abc import Mapping

from ...arithmetic.fair_order import LEAST_COST, OpenLane
from ...database.dialects.base import Row
from ...database.dialects.postgresql_arrays import array
from ...database.session import Session
from ...leases.leased import TASK, TICKET, ClaimedRow, Taker, named
from .only_lane import LANE, ONLY_LANE, with_lanes

CLAIM = f"""
WITH "want" AS (
    SELECT * FROM unnest(%(lanes)s::bigint[], %(counts)s::int[]) AS "want" ("lane", "count")
)
UPDATE "perfectqueue_ticket" AS "ticket"
SET "state" = 2, "attempt" = "ticket"."attempt" + 1, "holder" = %(holder)s,
    "token" = %(token)s, "alarm_at" = {{later}}
FROM "perfectqueue_task" AS "task"
WHERE "task"."id" = "ticket"."task_id" AND "ticket"."task_id" = ANY(ARRAY(
    SELECT "line"."task_id" FROM "want" CROSS JOIN LATERAL (
        SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
        WHERE "ticket"."state" = 0 AND "ticket"."lane" = "want"."lane"
        ORDER BY "ticket"."rank", "ticket"."run_at", "ticket"."task_id"
        LIMIT "want"."count"
        FOR UPDATE SKIP LOCKED
    ) AS "line"
    LIMIT %(limit)s
))
RETURNING {TICKET}, "ticket"."run_at",
    COALESCE("task"."expires_at" <= {{now}}, false), {TASK}
"""

CLAIM_ALONE = f"""
WITH "taken" AS (
    UPDATE "perfectqueue_ticket" AS "ticket"
    SET "state" = 2, "attempt" = "ticket"."attempt" + 1, "holder" = %(holder)s,
        "token" = %(token)s, "alarm_at" = {{later}}
    FROM "perfectqueue_task" AS "task"
    WHERE "task"."id" = "ticket"."task_id" AND "ticket"."task_id" = ANY(ARRAY(
        SELECT "task_id" FROM "perfectqueue_ticket"
        WHERE "state" = 0 AND "lane" = {ONLY_LANE}
            AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
        ORDER BY "rank", "run_at", "task_id" LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING {TICKET}, "ticket"."run_at",
        COALESCE("task"."expires_at" <= {{now}}, false), {TASK}
),
"charge" AS (
    SELECT "only"."id", count(*) AS "tasks",
        count(*) * GREATEST(ABS("only"."cost"), {LEAST_COST}) AS "seconds"
    FROM "taken" JOIN "perfectqueue_lane" AS "only" ON "only"."id" = "taken"."lane"
    GROUP BY "only"."id"
),
"charged" AS (
    UPDATE "perfectqueue_lane" AS "lane"
    SET "running" = "lane"."running" + "charge"."tasks",
        "virtual_time" = "lane"."virtual_time" + "charge"."seconds" / "lane"."weight",
        "since" = {{now}}
    FROM "charge" WHERE "lane"."id" = "charge"."id"
)
SELECT "taken".*, {LANE}
FROM "taken" JOIN "perfectqueue_lane" AS "only" ON "only"."id" = "taken"."lane"
"""


def claim(db: Session, wants: Mapping[int, int], limit: int, taker: Taker) -> list[ClaimedRow]:
    values = {"lanes": array(wants), "counts": array(wants.values()), "limit": limit}
    return named(run(db, CLAIM, values, taker))


def claim_alone(
    db: Session, queue: str, limit: int, taker: Taker
) -> list[tuple[ClaimedRow, OpenLane]]:
    return with_lanes(run(db, CLAIM_ALONE, {"queue": queue, "limit": limit}, taker))


def run(db: Session, sql: str, values: Mapping[str, object], taker: Taker) -> list[Row]:
    statement = sql.replace("{later}", db.dialect.later("%(seconds)s"))
    whose = {"holder": taker.holder, "token": taker.token, "seconds": taker.seconds}
    done = db.execute(statement, {**values, **whose}, now=taker.now)
    rows: list[Row] = done.fetchall()
    return rows
