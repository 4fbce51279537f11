"""For how long the oldest task has been kept waiting, by indexes and a bounded number of rows."""

from __future__ import annotations

from datetime import datetime
from itertools import product

from .dialects import Dialect
from .gates import serving_gates
from .transaction import reading

LANES = 500
GATES = 50
DIRECTIONS = ("ASC", "DESC")

OLDEST = """
SELECT {now}, MIN((
    SELECT "ticket"."run_at" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_line} AND "ticket"."rank" = "line"."rank"
    ORDER BY "ticket"."run_at" LIMIT 1
))
FROM (
    SELECT "open"."id" AS "lane", (
        SELECT "ticket"."rank" FROM "perfectqueue_ticket" AS "ticket"
        WHERE "ticket"."state" = 0 AND {in_open} ORDER BY "ticket"."rank" {end} LIMIT 1
    ) AS "rank"
    FROM ({lanes} ORDER BY "turn" {order} LIMIT %(lanes)s) AS "open"
) AS "line"
WHERE "line"."rank" IS NOT NULL
"""
OPEN_LANES = """
SELECT "id" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "gate" = %(gate)s AND "open" = TRUE
"""
OVERDUE = """
SELECT {now}, "alarm_at" FROM "perfectqueue_ticket"
WHERE "alarm_at" <= {now} ORDER BY "alarm_at" LIMIT 1
"""


def oldest_due(queue: str, *, using: str, now: datetime | None = None) -> float | None:
    """
    Return for how many seconds the oldest task that may start has been due; None for none.

    A task that a pause, a cap or a limit holds back is none. Of each user the first of the
    highest and of the lowest priority are looked at: those between are served before the
    latter. Of very many users it is the LANES that are served next, and the LANES that are
    served last.
    """
    found = []
    with reading(using) as (cursor, dialect):
        gates = serving_gates(cursor, dialect, queue)[0][:GATES]
        for gate, order, end in product(gates, DIRECTIONS, DIRECTIONS):
            statement = oldest_statement(dialect, order, end)
            values = {"queue": queue, "gate": gate, "lanes": LANES}
            moment, run_at = dialect.execute(cursor, statement, values, now=now).fetchone()
            if run_at is not None:
                wait = dialect.moment(moment) - dialect.moment(run_at)
                found.append(max(0.0, wait.total_seconds()))
    return max(found, default=None)


def oldest_statement(dialect: Dialect, order: str, end: str) -> str:
    statement = OLDEST.replace("{lanes}", OPEN_LANES)
    statement = statement.replace("{order}", order).replace("{end}", end)
    for name, column in (("{in_open}", '"open"."id"'), ("{in_line}", '"line"."lane"')):
        statement = statement.replace(name, dialect.in_lane.replace("{lane}", column))
    return statement


def overdue(*, using: str, now: datetime | None = None) -> float | None:
    """
    Return for how many seconds the clock has been waited for in vain, in any queue.

    That is a lease that has lapsed, a task whose time has come, or a lane that sleeps,
    with nobody there who sees to it. None is nothing.
    """
    with reading(using) as (cursor, dialect):
        row = dialect.execute(cursor, OVERDUE, now=now).fetchone()
        if row is None:
            return None
        return (dialect.moment(row[0]) - dialect.moment(row[1])).total_seconds()
