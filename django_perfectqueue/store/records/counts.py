"""Count what queues have, by indexes and a bounded number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django_perfectqueue.models import PARKED_FROM, UNFINISHED

from ..database.transaction import reading

QUEUES = 50
COUNTED = 10_000
LANES = 2_000
LATEST = 1_000
LATE_SCHEDULE = 60.0
USERS = 10

NAMES = """
SELECT 'queue', "name", {now} FROM ({queues}) AS "used"
UNION ALL
SELECT 'paused', "name", {now} FROM (
    SELECT "name" FROM "perfectqueue_limit" WHERE "scope" = 'queue' AND "paused" = TRUE
    ORDER BY "name" LIMIT %(most)s
) AS "pauses"
UNION ALL
SELECT 'now', '', {now}
"""
LATER = """
SELECT "queue", "kind", COUNT(*) FROM (
    SELECT (SELECT "queue" FROM "perfectqueue_task" WHERE "id" = "live"."task_id") AS "queue", CASE
        WHEN "state" = 2 AND "alarm_at" <= {now} THEN 'stalled'
        WHEN "state" = 2 THEN 'leased'
        WHEN "alarm_at" <= {now} THEN 'waiting'
        WHEN "alarm_at" > %(parked)s AND "alarm_at" <> "run_at" THEN 'parked'
        WHEN "last_ending" IN ({unfinished}) THEN 'retrying'
        ELSE 'scheduled'
    END AS "kind"
    FROM (
        SELECT "task_id", "state", "alarm_at", "run_at", "last_ending" FROM "perfectqueue_ticket"
        WHERE "alarm_at" IS NOT NULL ORDER BY "alarm_at" LIMIT %(most)s
    ) AS "live"
) AS "known"
WHERE "queue" IS NOT NULL GROUP BY "queue", "kind"
"""
RUNNING = """
SELECT "task"."queue", 'running', COUNT(*) FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
WHERE "ticket"."task_id" IN ({ids}) AND "ticket"."state" = 2 GROUP BY "task"."queue"
"""
WAITING = """
SELECT %({queue})s, 'waiting', COUNT(*) FROM (
    SELECT 1 AS "one" FROM (
        SELECT "id" FROM (
            SELECT "id" FROM "perfectqueue_lane" WHERE "queue" = %({queue})s AND "held_by" = 0
            ORDER BY "ready" DESC, "turn" LIMIT %(lanes)s
        ) AS "free"
        UNION ALL
        SELECT "id" FROM (
            SELECT "id" FROM "perfectqueue_lane" WHERE "queue" = %({queue})s AND "held_by" <> 0
            LIMIT %(lanes)s
        ) AS "behind"
    ) AS "line"
    JOIN "perfectqueue_ticket" AS "ticket" ON "ticket"."state" = 0 AND "ticket"."lane" = "line"."id"
    LIMIT %(most)s
) AS "counted"
"""
LATELY = """
SELECT 'failed', "group", '', COUNT(*), {failed_at}, 0.0 FROM (
    SELECT "group", "ended_at" FROM "perfectqueue_deadletter"
    WHERE "status" = 'failed' AND "ended_at" > %(since)s ORDER BY "ended_at" DESC LIMIT %(most)s
) AS "letter" GROUP BY "group"
UNION ALL
SELECT 'parked', "task"."queue", "task"."type", COUNT(*), {parked_at}, 0.0 FROM (
    SELECT "task_id", "run_at" FROM "perfectqueue_ticket"
    WHERE "alarm_at" > %(parked)s AND "alarm_at" <> "run_at" ORDER BY "alarm_at" LIMIT %(most)s
) AS "parked"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "parked"."task_id"
GROUP BY "task"."queue", "task"."type"
UNION ALL
SELECT 'late', '', '', COUNT(*), {due_at}, 0.0 FROM (
    SELECT "due_at" FROM "perfectqueue_schedule"
    WHERE "due_at" < %(late)s ORDER BY "due_at" LIMIT %(most)s
) AS "overdue" HAVING COUNT(*) > 0
"""
RECEIVED = """
UNION ALL
SELECT * FROM (
    SELECT 'received', "queue", "user", SUM("ended"), MAX("start"), SUM("seconds") AS "seconds"
    FROM "perfectqueue_usage"
    WHERE "queue" IN ({queues}) AND "span" = 60 AND "type" = '' AND "others" = FALSE
        AND "start" >= %(lately)s
    GROUP BY "queue", "user" ORDER BY "seconds" DESC LIMIT %(users)s
) AS "got"
"""
GROUPS = """
SELECT "group", COUNT(*) FROM (
    SELECT "group" FROM "perfectqueue_deadletter" WHERE {status} AND {users}
    ORDER BY "ended_at" DESC LIMIT %(most)s
) AS "letter" GROUP BY "group" ORDER BY COUNT(*) DESC, "group" LIMIT %(groups)s
"""


@dataclass(frozen=True, slots=True)
class Names:
    """The first QUEUES queues that have tasks, which queues are paused, and the server's time."""

    queues: list[str]
    paused: set[str]
    now: datetime


@dataclass(slots=True)
class Counts:
    """
    What queues have by status; ``leased`` tasks are in the hands of processors.

    What the clock will move is counted up to COUNTED in all queues together: with
    ``is_bounded`` there is more. What waits is counted up to COUNTED + 1 in each queue.
    """

    by_queue: dict[str, Counter[str]] = field(default_factory=dict)
    is_bounded: bool = False

    def of(self, queue: str) -> Counter[str]:
        return self.by_queue.get(queue, Counter())


@dataclass(slots=True)
class Lately:
    """
    Why the newest tasks failed, by group; what waits for a worker that knows its type, by
    queue and type; who received most in the last minutes, by queue and user; and how many
    schedules are LATE_SCHEDULE seconds late.

    The first two have how many, up to LATEST in all, and the time of the latest; the third has
    the attempts that ended, and the seconds.
    """

    failed: dict[str, tuple[int, datetime]]
    parked: dict[tuple[str, str], tuple[int, datetime]]
    received: dict[tuple[str, str], tuple[int, float]]
    late_schedules: int = 0


def names(*, using: str, now: datetime | None = None) -> Names:
    with reading(using) as db:
        found: dict[str, list[str]] = {"queue": [], "paused": [], "now": []}
        moment = None
        statement = NAMES.replace("{queues}", db.dialect.used_queues())
        for kind, name, at in db.rows(statement, {"most": QUEUES}, now=now):
            found[kind].append(name)
            moment = db.dialect.moment(at)
    assert moment is not None
    return Names(found["queue"], set(found["paused"]), moment)


def counts(
    queues: Sequence[str], busy: Iterable[int], *, using: str, now: datetime | None = None
) -> Counts:
    """Count the tasks of queues by status; ``busy`` are the ids that handlers work on."""
    parameters = {f"q{number}": queue for number, queue in enumerate(queues)}
    ids = sorted(busy)
    with reading(using) as db:
        parts = [f"SELECT * FROM ({LATER}) AS later"]
        parts += [RUNNING] if ids else []
        parts += [WAITING.replace("{queue}", name) for name in parameters]
        statement = " UNION ALL ".join(parts)
        values = {
            **parameters,
            "parked": db.dialect.parameter(PARKED_FROM),
            "lanes": LANES,
            "most": COUNTED + 1,
        }
        rows = db.rows(statement, values, now=now, unfinished=UNFINISHED, ids=ids)
    found = Counts()
    for queue, kind, count in rows:
        found.by_queue.setdefault(queue, Counter())[kind] += int(count)
    moving = ("stalled", "leased", "parked", "retrying", "scheduled")
    total = sum(one[kind] for one in found.by_queue.values() for kind in moving)
    found.is_bounded = total > COUNTED
    return found


def lately(queues: Sequence[str], now: datetime, *, using: str) -> Lately:
    """Return what failed within a day, what is parked, and who received what in five minutes."""
    found = Lately({}, {}, {})
    with reading(using) as db:
        values = {
            "since": db.dialect.parameter(now - timedelta(days=1)),
            "lately": db.dialect.parameter(now - timedelta(minutes=6)),
            "parked": db.dialect.parameter(PARKED_FROM),
            "late": db.dialect.parameter(now - timedelta(seconds=LATE_SCHEDULE)),
            "most": LATEST,
            "users": USERS,
        }
        statement = LATELY + (RECEIVED if queues else "")
        statement = statement.replace("{failed_at}", db.dialect.readable('MAX("ended_at")'))
        statement = statement.replace("{due_at}", db.dialect.readable('MIN("due_at")'))
        statement = statement.replace("{parked_at}", db.dialect.readable('MAX("parked"."run_at")'))
        for row in db.rows(statement, values, queues=queues):
            kind, name, other, count, at, seconds = row
            if kind == "failed":
                found.failed[name] = int(count), db.dialect.moment(at)
            elif kind == "parked":
                found.parked[name, other] = int(count), db.dialect.moment(at)
            elif kind == "late":
                found.late_schedules = int(count)
            else:
                found.received[name, other] = int(count), float(seconds)
    return found


OF_USERS = """
EXISTS (SELECT 1 FROM "perfectqueue_task" WHERE "id" = "task_id" AND "user" IN ({names}))
"""


def groups(
    status: str | None, users: Collection[str] | None, *, using: str
) -> list[tuple[str, int]]:
    """
    Return the groups of the COUNTED newest dead letters of a status, or of any.

    They are those of certain users, or of all where ``users`` is None.
    """
    statement = GROUPS.replace("{status}", '"status" = %(status)s' if status else "1 = 1")
    statement = statement.replace("{users}", "1 = 1" if users is None else OF_USERS)
    values = {"status": status, "most": COUNTED, "groups": QUEUES}
    with reading(using) as db:
        rows = db.rows(statement, values, names=users or ())
    return [(name, int(count)) for name, count in rows]
