"""What a claim reads where a single lane is open."""

from __future__ import annotations

from collections.abc import Iterable

from ...arithmetic.fair_order import UserLanes
from ...database.dialects.base import Row
from ...leases import ClaimedRow, in_line, named
from ...values import START, Watermarks

ONLY_LANE = """(
    SELECT "id" FROM (
        SELECT COUNT(*) AS "count", MAX("id") AS "id", MAX("has_open") AS "has_open",
            MAX("max_running") AS "max_running"
        FROM (
            SELECT "id", "has_open", "max_running" FROM "perfectqueue_account"
            WHERE "queue" = %(queue)s AND "ready" = TRUE
            ORDER BY "turn" LIMIT 2
        ) AS "ready"
    ) AS "first"
    WHERE "count" = 1 AND NOT "has_open" AND "max_running" IS NULL
        AND (
            SELECT 1 FROM "perfectqueue_ticket" WHERE "timer_at" <= {now}
            ORDER BY "timer_at" LIMIT 1
        ) IS NULL
        AND (SELECT 1 FROM "perfectqueue_limit" LIMIT 1) IS NULL
        AND (SELECT 1 FROM "perfectqueue_hold" LIMIT 1) IS NULL
)"""
FROM_MARK = """
AND ("rank", "run_at", "task_id") >= (
    CASE WHEN {{lane}} = {id} THEN {rank} ELSE {start_rank} END,
    to_timestamp(CASE WHEN {{lane}} = {id} THEN {time!r}::float8 ELSE '-infinity' END),
    CASE WHEN {{lane}} = {id} THEN {ticket} ELSE {start_ticket} END
)
"""
LANE = '"only"."virtual_time", "only"."cost", "only"."weight", "only"."policy"'


def from_mark(marks: Watermarks, lane: str) -> str:
    """
    Return the condition of tickets that stand behind the mark, where there is a single one and
    the ``lane`` has it.
    """
    if (only := marks.only()) is None:
        return ""
    id_, (rank, time, ticket) = only
    bound = FROM_MARK.format(
        id=id_, rank=rank, time=time, ticket=ticket, start_rank=START[0], start_ticket=START[2]
    )
    return bound.replace("{lane}", lane)


def with_lanes(rows: Iterable[Row]) -> list[tuple[ClaimedRow, UserLanes]]:
    """Return rows that end with the columns of LANE, in line, each with its lane."""
    claimed = []
    for *columns, virtual_time, cost, weight, policy in rows:
        [one] = named([tuple(columns)])
        lane = UserLanes(
            id=one.lane,
            virtual_time=virtual_time,
            cost=cost,
            weight=weight,
            room=None,
            policy=policy,
        )
        claimed.append((one, lane))
    # Not by the statement: MySQL and MariaDB would make a temporary table for it.
    return sorted(claimed, key=lambda one: in_line(one[0]))
