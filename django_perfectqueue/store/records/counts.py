"""Count the tasks of queues by their status, by indexes and a bounded number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django_perfectqueue.models import PARKED_FROM, UNFINISHED

from ..arithmetic.rate_limit import families, governing
from ..database.transaction import reading
from ..values import Now

QUEUES = 50
COUNTED = 10_000
LANES = 2_000
LATEST = 1_000
LATE_AFTER = timedelta(seconds=60)

NAMES = """
SELECT 'queue', "name", {now} FROM ({queues}) AS "used"
UNION ALL
SELECT CASE WHEN "paused" = TRUE THEN 'paused' ELSE 'open' END, "name", {now} FROM (
    SELECT "name", "paused" FROM "perfectqueue_limit" WHERE "scope" = 'queue'
    ORDER BY "paused" DESC, "name" LIMIT %(latest)s
) AS "pauses"
UNION ALL
SELECT 'now', '', {now}
"""
# The tasks of a lane have one queue, so one of them is looked up for it.
LATER = """
SELECT "kind", "task"."queue", SUM("count") FROM (
    SELECT COUNT(*) AS "count", MIN("task_id") AS "task_id", CASE
        WHEN "state" = 3 THEN 'blocked'
        WHEN "state" = 2 AND "timer_at" <= {now} THEN 'stalled'
        WHEN "state" = 2 THEN 'running'
        WHEN "timer_at" <= {now} THEN 'waiting'
        WHEN "timer_at" > %(parked)s AND "timer_at" <> "run_at" THEN 'parked'
        WHEN "last_ending" IN ({unfinished}) THEN 'retrying'
        ELSE 'scheduled'
    END AS "kind"
    FROM (
        SELECT * FROM (
            SELECT "lane", "task_id", "state", "timer_at", "run_at", "last_ending"
            FROM "perfectqueue_ticket"
            WHERE "timer_at" IS NOT NULL ORDER BY "timer_at" LIMIT %(most)s
        ) AS "timed"
        UNION ALL
        SELECT * FROM (
            SELECT "lane", "task_id", "state", "timer_at", "run_at", "last_ending"
            FROM "perfectqueue_ticket" WHERE "state" = 3 AND "timer_at" IS NULL LIMIT %(most)s
        ) AS "untimed"
    ) AS "live" GROUP BY "lane", "kind"
) AS "known"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "known"."task_id"
GROUP BY "task"."queue", "kind"
"""
# With JOIN in place of CROSS JOIN SQLite would read all that waits, in whatever queue.
WAITING = """
SELECT 'waiting', %({queue})s, COUNT(*) FROM (
    SELECT 1 AS "one" FROM (
        SELECT "id" FROM (
            SELECT "id" FROM "perfectqueue_account" WHERE "queue" = %({queue})s
            ORDER BY "ready" DESC, "turn" LIMIT %(lanes)s
        ) AS "plain"
        UNION ALL
        SELECT "id" FROM (
            SELECT "lane"."id" FROM "perfectqueue_account" AS "own"
            CROSS JOIN "perfectqueue_lane" AS "lane"
            WHERE "own"."queue" = %({queue})s AND "lane"."account" = "own"."id" LIMIT %(lanes)s
        ) AS "limited"
    ) AS "line"
    CROSS JOIN "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND "ticket"."lane" = "line"."id"
    LIMIT %(most)s
) AS "counted"
"""
LATE = """
SELECT 'late', '', COUNT(*) FROM (
    SELECT 1 AS "one" FROM "perfectqueue_schedule" WHERE "due_at" < %(late)s LIMIT %(latest)s
) AS "overdue"
"""


@dataclass(frozen=True, slots=True)
class Names:
    """
    The first QUEUES queues that have tasks, whether limits and families of queues are paused,
    and the server's time.
    """

    queues: list[str]
    pauses: Mapping[str, bool]
    now: datetime

    def is_paused(self, queue: str) -> bool:
        by = governing(queue, self.pauses, families(self.pauses))
        return by is not None and self.pauses[by]


@dataclass(slots=True)
class Counts:
    """
    How many tasks queues have by status; ``parked`` are those scheduled for no worker's type.

    What the clock will move is counted up to COUNTED in all queues together, and what is
    blocked alike: with ``is_bounded`` there is more. What waits is counted up to COUNTED + 1 in
    each queue. ``late_schedules`` are LATE_AFTER late, up to LATEST.
    """

    by_queue: dict[str, Counter[str]] = field(default_factory=dict)
    is_bounded: bool = False
    late_schedules: int = 0


def names(*, using: str, now: Now = None) -> Names:
    found: dict[str, list[str]] = {"queue": [], "paused": [], "open": [], "now": []}
    with reading(using, now=now) as db:
        values = {"most": QUEUES, "latest": LATEST}
        rows = db.rows(NAMES, values, queues=db.dialect.used_queues)
        for kind, name, _at in rows:
            found[kind].append(name)
        pauses = dict.fromkeys(found["open"], False) | dict.fromkeys(found["paused"], True)
        return Names(found["queue"], pauses, db.dialect.moment(rows[0][2]))


def counts(queues: Sequence[str], now: datetime, *, using: str) -> Counts:
    """Return what queues have, in one statement."""
    found = Counts()
    parameters = {f"q{number}": queue for number, queue in enumerate(queues)}
    parts = [LATER, LATE, *(WAITING.replace("{queue}", name) for name in parameters)]
    with reading(using) as db:
        values = {
            **parameters,
            "parked": db.dialect.parameter(PARKED_FROM),
            "lanes": LANES,
            "most": COUNTED + 1,
            "late": db.dialect.parameter(now - LATE_AFTER),
            "latest": LATEST,
        }
        for kind, queue, count in db.rows(" UNION ALL ".join(parts), values, unfinished=UNFINISHED):
            found.by_queue.setdefault(queue, Counter())[kind] += int(count)
    found.late_schedules = found.by_queue.pop("")["late"]
    moving = ("stalled", "running", "parked", "retrying", "scheduled")
    found.is_bounded = any(
        sum(one[kind] for one in found.by_queue.values() for kind in kinds) > COUNTED
        for kinds in (moving, ("blocked",))
    )
    return found
