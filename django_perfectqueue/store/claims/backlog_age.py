"""For how long the oldest task has been kept waiting, by indexes and a bounded number of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product

from ..database.transaction import Session, reading
from ..limits.holds import shut_gates
from ..values import Now

LANES = 500
LEAST_LANES = 20
# So many lines in one statement: SQLite unites no more than 500 queries.
LINES = 100
DIRECTIONS = ("ASC", "DESC")

OPEN_LANES = """
SELECT "id", "turn" FROM (
    SELECT "id", "turn" FROM "perfectqueue_account"
    WHERE "queue" = %(queue_{n})s AND "ready" = TRUE AND "has_waiting" = TRUE
    ORDER BY "turn" {order} LIMIT %(lanes)s
) AS "plain"
UNION ALL
SELECT "lane"."id", "own"."turn" FROM (
    SELECT "id", "turn" FROM "perfectqueue_account"
    WHERE "queue" = %(queue_{n})s AND "ready" = TRUE AND "has_open" = TRUE
    ORDER BY "turn" {order} LIMIT %(lanes)s
) AS "own"
JOIN "perfectqueue_lane" AS "lane" ON "lane"."account" = "own"."id"
WHERE "lane"."held_by" = 0 AND "lane"."has_waiting" = TRUE AND "lane"."gate" NOT IN ({shut})
"""
OLDEST = f"""
SELECT %(queue_{{n}})s, {{now}}, (SELECT "run_at" FROM (SELECT MIN((
    SELECT "ticket"."run_at" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND "ticket"."lane" = "line"."lane"
        AND "ticket"."rank" = "line"."rank"
    ORDER BY "ticket"."run_at" LIMIT 1
)) AS "run_at"
FROM (
    SELECT "ready"."id" AS "lane", (
        SELECT "ticket"."rank" FROM "perfectqueue_ticket" AS "ticket"
        WHERE "ticket"."state" = 0 AND "ticket"."lane" = "ready"."id"
        ORDER BY "ticket"."rank" {{end}} LIMIT 1
    ) AS "rank"
    FROM ({OPEN_LANES}) AS "ready"
) AS "line"
WHERE "line"."rank" IS NOT NULL) AS "first")
"""
OVERDUE = """
SELECT {now}, "timer_at" FROM "perfectqueue_ticket"
WHERE "timer_at" <= {now} ORDER BY "timer_at" LIMIT 1
"""


def oldest_due(queues: Sequence[str], *, using: str, now: Now = None) -> dict[str, float | None]:
    """
    Return for how many seconds the oldest task that may start has been due; None for none.

    Tasks that a pause, a cap or a limit holds back do not count. Of each user it reads the first
    task of the highest and of the lowest priority: those between are served before the latter.
    Of very many users it reads the LANES that are served next and the LANES that are served last,
    of many queues together fewer of each. It takes a few statements, however many queues there
    are.
    """
    found: dict[str, float | None] = dict.fromkeys(queues)
    with reading(using, now=now) as db:
        lanes = max(min(LANES, LEAST_LANES), LANES // max(1, len(found)))
        shut = shut_gates(db, list(found)) if found else set()
        for begin in range(0, len(found), LINES):
            some = list(found)[begin : begin + LINES]
            for queue, wait in waits(db, some, shut, lanes):
                found[queue] = max(found[queue] or 0.0, wait)
    return found


def waits(
    db: Session, queues: Sequence[str], shut: Collection[int], lanes: int
) -> Iterator[tuple[str, float]]:
    """Yield the queue of what is due, and for how long it has been."""
    parts: list[str] = []
    values: dict[str, object] = {"lanes": lanes}
    for number, queue in enumerate(queues):
        values[f"queue_{number}"] = queue
        parts += [
            OLDEST.replace("{order}", order).replace("{end}", end).replace("{n}", str(number))
            for order, end in product(DIRECTIONS, DIRECTIONS)
        ]
    rows = db.rows(" UNION ALL ".join(parts), values, shut=sorted(shut) or [1])
    for queue, moment, run_at in rows:
        if run_at is not None:
            wait = db.dialect.moment(moment) - db.dialect.moment(run_at)
            yield queue, max(0.0, wait.total_seconds())


def overdue(*, using: str, now: Now = None) -> float | None:
    """
    Return for how many seconds the oldest timer of any queue has been due.

    It is of a lease that has lapsed, or of a task whose time has come. None means that no timer
    is due.
    """
    with reading(using, now=now) as db:
        row = db.execute(OVERDUE).fetchone()
        if row is None:
            return None
        return (db.dialect.moment(row[0]) - db.dialect.moment(row[1])).total_seconds()
