"""For how long the oldest task has been kept waiting, by indexes and a bounded number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import product
from typing import Any

from ..database.dialects import Dialect
from ..database.transaction import reading
from ..limits.gates import limits_of, open_gates

LANES = 500
LEAST_LANES = 20
GATES = 50
LINES = 100
"""So many lines in one statement: SQLite unites no more than 500 queries."""
DIRECTIONS = ("ASC", "DESC")

OLDEST = """
SELECT %(queue_{n})s, {now}, (SELECT {run_at} FROM (SELECT MIN((
    SELECT "ticket"."run_at" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_line} AND "ticket"."rank" = "line"."rank"
    ORDER BY "ticket"."run_at" LIMIT 1
)) AS "run_at"
FROM (
    SELECT "open"."id" AS "lane", (
        SELECT "ticket"."rank" FROM "perfectqueue_ticket" AS "ticket"
        WHERE "ticket"."state" = 0 AND {in_open} ORDER BY "ticket"."rank" {end} LIMIT 1
    ) AS "rank"
    FROM ({lanes} ORDER BY "turn" {order} LIMIT %(lanes)s) AS "open"
) AS "line"
WHERE "line"."rank" IS NOT NULL) AS "first")
"""
OPEN_LANES = """
SELECT "id" FROM "perfectqueue_lane"
WHERE "queue" = %(queue_{n})s AND "gate" = %(gate_{n})s AND "open" = TRUE
"""
OVERDUE = """
SELECT {now}, {alarm_at} FROM "perfectqueue_ticket"
WHERE "alarm_at" <= {now} ORDER BY "alarm_at" LIMIT 1
"""


def oldest_due(
    queues: Sequence[str], *, using: str, now: datetime | None = None
) -> dict[str, float | None]:
    """
    Return for how many seconds the oldest task that may start has been due; None for none.

    A task that a pause, a cap or a limit holds back is none. Of each user the first of the
    highest and of the lowest priority are looked at: those between are served before the
    latter. Of very many users it is the LANES that are served next, and the LANES that are
    served last; of many queues together fewer of each. It takes a few statements, however
    many queues there are.
    """
    found: dict[str, float | None] = dict.fromkeys(queues)
    with reading(using) as (cursor, dialect):
        lines = lines_of(cursor, dialect, list(found))
        lanes = max(min(LANES, LEAST_LANES), LANES // max(1, len(lines)))
        for begin in range(0, len(lines), LINES):
            some = lines[begin : begin + LINES]
            for queue, wait in waits(cursor, dialect, some, lanes, now):
                found[queue] = max(found[queue] or 0.0, wait)
    return found


def lines_of(cursor: Any, dialect: Dialect, queues: list[str]) -> list[tuple[str, int]]:
    """Return the queues, and the gates that let tasks start now, so many of these."""
    if not queues:
        return []
    found = open_gates(cursor, dialect, queues)[:GATES]
    holding = limits_of(cursor, dialect, {gate: keys for gate, _queue, keys in found}, None)
    serving = {gate for gate, limits in holding.items() if all(limit.room for limit in limits)}
    gates = [(queue, gate) for gate, queue, _keys in found if gate in serving]
    return [(queue, 0) for queue in queues] + gates


def waits(
    cursor: Any,
    dialect: Dialect,
    lines: Sequence[tuple[str, int]],
    lanes: int,
    now: datetime | None,
) -> Iterator[tuple[str, float]]:
    """Yield the queue of what is due, and for how long it has been."""
    parts: list[str] = []
    values: dict[str, Any] = {"lanes": lanes}
    for number, (queue, gate) in enumerate(lines):
        values |= {f"queue_{number}": queue, f"gate_{number}": gate}
        parts += [
            oldest_statement(dialect, order, end).replace("{n}", str(number))
            for order, end in product(DIRECTIONS, DIRECTIONS)
        ]
    rows = dialect.execute(cursor, " UNION ALL ".join(parts), values, now=now).fetchall()
    for queue, moment, run_at in rows:
        if run_at is not None:
            wait = dialect.moment(moment) - dialect.moment(run_at)
            yield queue, max(0.0, wait.total_seconds())


def oldest_statement(dialect: Dialect, order: str, end: str) -> str:
    statement = OLDEST.replace("{lanes}", OPEN_LANES, 1).replace("{order}", order)
    statement = statement.replace("{end}", end)
    statement = statement.replace("{run_at}", dialect.readable('"run_at"'))
    for name, column in (("{in_open}", '"open"."id"'), ("{in_line}", '"line"."lane"')):
        statement = statement.replace(name, dialect.in_lane.replace("{lane}", column))
    return statement


def overdue(*, using: str, now: datetime | None = None) -> float | None:
    """
    Return for how many seconds the clock has been waited for in vain, in any queue.

    That is a lease that has lapsed or a task whose time has come, with nobody there who
    sees to it. None is nothing.
    """
    with reading(using) as (cursor, dialect):
        statement = OVERDUE.replace("{alarm_at}", dialect.readable('"alarm_at"'))
        row = dialect.execute(cursor, statement, now=now).fetchone()
        if row is None:
            return None
        return (dialect.moment(row[0]) - dialect.moment(row[1])).total_seconds()
