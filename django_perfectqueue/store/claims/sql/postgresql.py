"""On PostgreSQL a claim is one statement."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import partial

from ...arithmetic.fair_order import LEAST_COST
from ...database.dialects.base import Row
from ...database.dialects.postgresql_server import array
from ...database.transaction import Session
from ...leases import LATE, TASK, TICKET, ClaimedRow, in_line, named
from ...upkeep.timers import since
from ...values import START, ClaimRequest, Watermarks
from .only_lane import LANE, NO_TIMER_OR_LIMIT, Alone, from_mark, with_lane

# Within what Python has: a time that is none holds up nobody.
EPOCH = """EXTRACT(EPOCH FROM GREATEST(
    LEAST({}, timestamptz '9999-12-30 00:00+00'), timestamptz '0001-01-02 00:00+00'
))::float8"""
TASK = TASK.replace('"task"."created_at"', EPOCH.format('"task"."created_at"'))
RUN_AT = EPOCH.format('"ticket"."run_at"')

# Return a time as CLAIM returns it, aware: the driver's own way asks for its zone each time.
aware = partial(datetime.fromtimestamp, tz=timezone.utc)

TAKE = f"""
UPDATE "perfectqueue_ticket" AS "ticket"
SET "state" = 2, "attempt" = "ticket"."attempt" + 1, "holder" = %(holder)s,
    "token" = %(token)s, "timer_at" = {{later}}
FROM "perfectqueue_task" AS "task"
WHERE "task"."id" = "ticket"."task_id" AND "ticket"."task_id" = ANY(ARRAY({{line}}))
RETURNING {TICKET}, {RUN_AT}, COALESCE({LATE}, false), {TASK}
"""
WANTED = """
    SELECT "line"."task_id" FROM "want" CROSS JOIN LATERAL (
        SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
        WHERE "ticket"."state" = 0 AND "ticket"."lane" = "want"."lane"
            AND ("ticket"."rank", "ticket"."run_at", "ticket"."task_id")
                >= ("want"."rank", to_timestamp("want"."time"), "want"."id")
        ORDER BY "ticket"."rank", "ticket"."run_at", "ticket"."task_id"
        LIMIT "want"."count"
        FOR UPDATE SKIP LOCKED
    ) AS "line"
    LIMIT %(limit)s
"""
CLAIM = f"""
WITH "want" AS (
    SELECT * FROM unnest(
        %(lanes)s::bigint[], %(counts)s::int[], %(ranks)s::int[], %(times)s::float8[],
        %(ids)s::bigint[]
    ) AS "want" ("lane", "count", "rank", "time", "id")
) {TAKE.replace("{line}", WANTED)}
"""

OF_ONLY_LANE = """
    SELECT "task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "state" = 0 AND "lane" = (SELECT "id" FROM "only"){from_mark}
    ORDER BY "rank", "run_at", "task_id" LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
# Not by ONLY_LANE: this reads the lane once.
CLAIM_ALONE = f"""
WITH "ready" AS (
    SELECT "id", "has_open", "cost", "virtual_time", "weight", "policy", "max_running"
    FROM "perfectqueue_account"
    WHERE "queue" = %(queue)s AND "ready" = TRUE ORDER BY "turn" LIMIT 2
),
"only" AS (
    SELECT *, GREATEST(ABS("cost"), {LEAST_COST}) AS "charge" FROM "ready"
    WHERE "max_running" IS NULL AND NOT "has_open" AND (SELECT count(*) FROM "ready") = 1
        AND {NO_TIMER_OR_LIMIT}
        AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
),
"taken" AS ({TAKE.replace("{line}", OF_ONLY_LANE)}),
"charged" AS (
    UPDATE "perfectqueue_account" AS "lane"
    SET "running" = "lane"."running" + "count"."tasks",
        "virtual_time" = "lane"."virtual_time"
            + "count"."tasks" * (SELECT "charge" FROM "only") / "lane"."weight",
        "advance" = "lane"."advance" + "count"."tasks" * (SELECT "charge" FROM "only"),
        "since" = {{now}}
    FROM (SELECT count(*) AS "tasks" FROM "taken") AS "count"
    WHERE "lane"."id" = (SELECT "id" FROM "only") AND "count"."tasks" > 0
)
SELECT "taken".*, {LANE} FROM "taken", "only"
"""


def claim(
    db: Session, wants: Mapping[int, int], limit: int, request: ClaimRequest, token: int
) -> list[ClaimedRow]:
    """Take tickets of each lane from its mark on, or from the start where it has none."""
    marks, began = request.marks, time.monotonic()
    known = marks.lanes if marks.in_use else {}
    ranks, times, ids = zip(*[known.get(lane, START) for lane in wants], strict=True)
    values = {
        "lanes": array(wants),
        "counts": array(wants.values()),
        "ranks": array(ranks),
        "times": array(times),
        "ids": array(ids),
        "limit": limit,
    }
    rows = named(run(db, CLAIM, values, request, token))
    note(marks, rows, began)
    return rows


def note(marks: Watermarks, rows: Sequence[ClaimedRow], began: float) -> None:
    """Note up to where tickets were taken by a statement that began then."""
    marks.was_read(time.monotonic() - began, len(rows))
    if marks.until > began:
        marks.lanes.update((row.lane, in_line(row)) for row in sorted(rows, key=in_line))


def claim_alone(db: Session, request: ClaimRequest, token: int) -> Alone:
    marks, began = request.marks, time.monotonic()
    marks.begin()
    statement = CLAIM_ALONE.replace("{since}", since(db, marks))
    statement = statement.replace("{from_mark}", from_mark(marks, '(SELECT "id" FROM "only")'))
    values = {"queue": request.queues[0], "limit": request.limit}
    claimed, lane = with_lane(run(db, statement, values, request, token))
    note(marks, claimed, began)
    if claimed:
        marks.looked(began, due=False)
    return claimed, lane


def run(
    db: Session, sql: str, values: Mapping[str, object], request: ClaimRequest, token: int
) -> list[Row]:
    whose = {"holder": request.holder, "token": token, "seconds": request.alive_time}
    later = db.dialect.later("%(seconds)s")
    return db.rows(sql, {**values, **whose}, later=later)
