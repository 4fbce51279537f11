"""What a claim reads where a single lane is open."""

from __future__ import annotations

from collections.abc import Sequence

from ...arithmetic.fair_order import UserLanes
from ...database.dialects.base import Row
from ...leases import ClaimedRow, in_line, named
from ...upkeep.timers import TIMER_DUE
from ...values import START, Watermarks

NO_TIMER_OR_LIMIT = f"""{TIMER_DUE} IS NULL
        AND (SELECT 1 FROM "perfectqueue_limit" LIMIT 1) IS NULL
        AND (SELECT 1 FROM "perfectqueue_hold" LIMIT 1) IS NULL"""
ONLY_LANE = f"""(
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
        AND {NO_TIMER_OR_LIMIT.replace("{since}", "")}
)"""
FROM_MARK = """
AND ("ticket"."rank", "ticket"."run_at", "ticket"."task_id") >= (
    CASE {lane} {ranks} ELSE {start_rank} END,
    to_timestamp(CASE {lane} {times} ELSE '-infinity' END),
    CASE {lane} {tickets} ELSE {start_ticket} END
)
"""
# What was claimed of the only lane, and the lane as it was.
Alone = tuple[list[ClaimedRow], UserLanes | None]
LANE = '"only"."virtual_time", "only"."cost", "only"."weight", "only"."policy"'


def from_mark(marks: Watermarks, lane: str) -> str:
    """Return the condition of tickets that stand behind the mark of their ``lane``, if it has."""
    if not (few := marks.few()):
        return ""
    known = [(f"WHEN {id_} THEN", mark) for id_, mark in few.items()]
    return FROM_MARK.format(
        lane=lane,
        ranks=" ".join(f"{when} {rank}" for when, (rank, _time, _ticket) in known),
        times=" ".join(f"{when} {time!r}::float8" for when, (_rank, time, _ticket) in known),
        tickets=" ".join(f"{when} {ticket}" for when, (_rank, _time, ticket) in known),
        start_rank=START[0],
        start_ticket=START[2],
    )


def with_lane(rows: Sequence[Row]) -> Alone:
    """Return rows that end with the columns of LANE, in line, and their lane; None without rows."""
    if not rows:
        return [], None
    # Not by the statement: MySQL and MariaDB would make a temporary table for it.
    claimed = sorted(named([row[:-4] for row in rows]), key=in_line)
    virtual_time, cost, weight, policy = rows[0][-4:]
    lane = UserLanes(
        id=claimed[0].lane,
        virtual_time=virtual_time,
        cost=cost,
        weight=weight,
        room=None,
        policy=policy,
    )
    return claimed, lane
