"""Count what queues have, by indexes and a bounded number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django_perfectqueue.models import ALL_TYPES, PARKED_FROM, UNFINISHED, Bucket, Worker

from ..arithmetic.fair_order import LANES_PROBED
from ..database.dialects import Dialect
from ..database.dialects.base import Row
from ..database.transaction import reading
from ..limits.holds import FREE_LIMITED
from .usage import Tally, start_of

QUEUES = 50
COUNTED = 10_000
LANES = 2_000
LATEST = 1_000
LATE_SCHEDULE = 60.0
USERS = 10

NAMES = """
SELECT 'queue', "name", {now}, 0, '', 0, 0, '', 0, '', '', {now} FROM ({queues}) AS "used"
UNION ALL
SELECT 'paused', "name", {now}, 0, '', 0, 0, '', 0, '', '', {now} FROM (
    SELECT "name" FROM "perfectqueue_limit" WHERE "scope" = 'queue' AND "paused" = TRUE
    ORDER BY "name" LIMIT %(most)s
) AS "pauses"
UNION ALL
SELECT 'now', '', {now}, 0, '', 0, 0, '', 0, '', '', {now}
"""
WORKERS = """
UNION ALL
SELECT 'worker', '', "seen_at", "id", "host", "pid", "generation", "version", "processors",
    "queues", "seats", "started_at"
FROM (
    SELECT "id", "host", "pid", "generation", "version", "processors", "queues", "seats",
        {started_at} AS "started_at", {seen_at} AS "seen_at"
    FROM "perfectqueue_worker" WHERE "leaving" = FALSE
    ORDER BY "perfectqueue_worker"."seen_at" DESC LIMIT %(workers)s
) AS "newest"
"""
LATER = """
SELECT "kind", "task"."queue", '', '', {now}, SUM("count"), 0, 0, 0, 0.0 FROM (
    SELECT COUNT(*) AS "count", MIN("task_id") AS "task_id", CASE
        WHEN "state" = 3 THEN 'blocked'
        WHEN "state" = 2 AND "alarm_at" <= {now} THEN 'stalled'
        WHEN "state" = 2 THEN 'running'
        WHEN "alarm_at" <= {now} THEN 'waiting'
        WHEN "alarm_at" > %(parked)s AND "alarm_at" <> "run_at" THEN 'parked'
        WHEN "last_ending" IN ({unfinished}) THEN 'retrying'
        ELSE 'scheduled'
    END AS "kind"
    FROM (
        SELECT * FROM (
            SELECT "lane", "task_id", "state", "alarm_at", "run_at", "last_ending"
            FROM "perfectqueue_ticket"
            WHERE "alarm_at" IS NOT NULL ORDER BY "alarm_at" LIMIT %(most)s
        ) AS "timed"
        UNION ALL
        SELECT * FROM (
            SELECT "lane", "task_id", "state", "alarm_at", "run_at", "last_ending"
            FROM "perfectqueue_ticket" WHERE "state" = 3 LIMIT %(most)s
        ) AS "untimed"
    ) AS "live" GROUP BY "lane", "kind"
) AS "known"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "known"."task_id"
GROUP BY "task"."queue", "kind"
"""
"""The tasks of a lane have one queue, so one of them is looked up for it."""
WAITING = """
SELECT 'waiting', %({queue})s, '', '', {now}, COUNT(*), 0, 0, 0, 0.0 FROM (
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
    CROSS JOIN "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND "ticket"."lane" = "line"."id"
    LIMIT %(most)s
) AS "counted"
"""
"""With JOIN in place of CROSS JOIN SQLite would read all that waits, in whatever queue."""
FAILED = """
SELECT 'group', "group", '', '', {failed_at}, COUNT(*), 0, 0, 0, 0.0 FROM (
    SELECT "group", "ended_at" FROM "perfectqueue_deadletter"
    WHERE "status" = 'failed' AND "ended_at" > %(day_ago)s ORDER BY "ended_at" DESC LIMIT %(latest)s
) AS "letter" GROUP BY "group"
"""
PARKED = """
SELECT 'type', "task"."queue", "task"."type", '', {parked_at}, COUNT(*), 0, 0, 0, 0.0 FROM (
    SELECT "task_id", "run_at" FROM "perfectqueue_ticket"
    WHERE "alarm_at" > %(parked)s AND "alarm_at" <> "run_at" ORDER BY "alarm_at" LIMIT %(latest)s
) AS "parked"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "parked"."task_id"
GROUP BY "task"."queue", "task"."type"
"""
LATE = """
SELECT 'late', '', '', '', {now}, COUNT(*), 0, 0, 0, 0.0 FROM (
    SELECT 1 AS "one" FROM "perfectqueue_schedule"
    WHERE "due_at" < %(late)s ORDER BY "due_at" LIMIT %(latest)s
) AS "overdue"
"""
RECEIVED = """
SELECT 'user', "queue", "user", '', {now}, "ended", 0, 0, 0, "seconds" FROM (
    SELECT "queue", "user", SUM("ended") AS "ended", SUM("seconds") AS "seconds"
    FROM "perfectqueue_usage" WHERE "queue" IN ({queues}) AND "span" = 60
        AND "type" = '' AND "others" = FALSE AND "start" >= %(lately)s
    GROUP BY "queue", "user" ORDER BY SUM("seconds") DESC LIMIT %(users)s
) AS "got"
"""
GATES = f"""
SELECT 'gate', '', '', "keys", {{now}}, "gate", 0, 0, 0, 0.0 FROM ({FREE_LIMITED}) AS "gates"
"""
MINUTES = """
SELECT 'minute', "queue", '', '', {start}, "finished", "retried", "failed", "submitted", "cancelled"
FROM "perfectqueue_usage"
WHERE "queue" IN ({queues}) AND "span" = 60 AND "type" = %(all)s AND "others" = TRUE
    AND "user" = '' AND "start" >= %(since)s AND "start" < %(until)s
"""
GROUPS = """
SELECT "group", COUNT(*) FROM (
    SELECT "group" FROM "perfectqueue_deadletter" WHERE {status} AND {users}
    ORDER BY "ended_at" DESC LIMIT %(most)s
) AS "letter" GROUP BY "group" ORDER BY COUNT(*) DESC, "group" LIMIT %(groups)s
"""


READ = {
    "failed_at": 'MAX("ended_at")',
    "parked_at": 'MAX("parked"."run_at")',
    "start": '"start"',
    "started_at": '"started_at"',
    "seen_at": '"seen_at"',
}
"""Times that a statement names in braces."""
WORKER = ("id", "host", "pid", "generation", "version", "processors", "queues_text", "seats_text")


@dataclass(frozen=True, slots=True)
class Names:
    """
    The first QUEUES queues that have tasks, which queues are paused, the server's time, and the
    workers that take tasks, those seen last first.
    """

    queues: list[str]
    paused: set[str]
    now: datetime
    workers: list[Worker]


@dataclass(slots=True)
class Figures:
    """
    What queues have by status, and what happened there lately.

    What the clock will move is counted up to COUNTED in all queues together, and what is
    blocked alike: with ``is_bounded`` there is more. What waits is counted up to COUNTED + 1 in
    each queue.

    ``failed`` is why the newest tasks failed, by group; ``parked`` what waits for a worker that
    knows its type, by queue and type. Each has how many, up to LATEST in all, and the time of
    the latest. ``received`` is who received most in the last minutes, by queue and user: the
    attempts that ended, and the seconds. ``late_schedules`` are LATE_SCHEDULE seconds late.
    ``gates`` are the limits, as JSON, of the first lanes that nothing holds back yet, by their
    hash. ``points`` say of each minute of a queue how many attempts finished, failed, were
    retried and cancelled, and how many tasks were submitted.
    """

    by_queue: dict[str, Counter[str]] = field(default_factory=dict)
    is_bounded: bool = False
    failed: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    parked: dict[tuple[str, str], tuple[int, datetime]] = field(default_factory=dict)
    received: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    late_schedules: int = 0
    gates: dict[int, str] = field(default_factory=dict)
    points: list[tuple[str, datetime, Tally]] = field(default_factory=list)

    def of(self, queue: str) -> Counter[str]:
        return self.by_queue.get(queue, Counter())

    def add(self, row: Row, dialect: Dialect) -> None:
        """Add a row of the statement."""
        kind, name, other, keys, at, count, second, third, fourth, amount = row
        count = int(count)
        if kind == "group":
            self.failed[name] = count, dialect.moment(at)
        elif kind == "type":
            self.parked[name, other] = count, dialect.moment(at)
        elif kind == "user":
            self.received[name, other] = count, float(amount)
        elif kind == "late":
            self.late_schedules = count
        elif kind == "gate":
            self.gates[count] = keys
        elif kind == "minute":
            tally = Tally(
                finished=count,
                retried=int(second),
                failed=int(third),
                submitted=int(fourth),
                cancelled=int(amount),
            )
            self.points.append((name, dialect.moment(at), tally))
        else:
            self.by_queue.setdefault(name, Counter())[kind] += count


def names(*, using: str, workers: int = 0, now: datetime | None = None) -> Names:
    """Return them; of the workers at most so many."""
    found: dict[str, list[str]] = {"queue": [], "paused": [], "now": []}
    seen, moment = [], None
    with reading(using) as db:
        statement = with_times(NAMES + (WORKERS if workers else ""), db.dialect)
        statement = statement.replace("{queues}", db.dialect.used_queues())
        values = {"most": QUEUES, "workers": workers}
        for kind, name, at, *worker in db.rows(statement, values, now=now):
            if kind == "worker":
                *columns, started_at = worker
                times = {
                    "seen_at": db.dialect.moment(at),
                    "started_at": db.dialect.moment(started_at),
                }
                seen.append(Worker(**dict(zip(WORKER, columns, strict=True)), **times))
            else:
                found[kind].append(name)
                moment = db.dialect.moment(at)
    assert moment is not None
    serving = [worker for worker in seen if not worker.is_gone(moment)]
    return Names(found["queue"], set(found["paused"]), moment, serving)


def figures(queues: Sequence[str], now: datetime, since: datetime, *, using: str) -> Figures:
    """
    Return the figures of queues in one statement.

    What failed is of a day, who received what of five minutes, and the points of ``since``.
    """
    found = Figures()
    if not queues:
        return found
    parameters = {f"q{number}": queue for number, queue in enumerate(queues)}
    parts = [LATER, FAILED, PARKED, LATE, RECEIVED, GATES, MINUTES]
    parts += [WAITING.replace("{queue}", name) for name in parameters]
    statement = " UNION ALL ".join(parts)
    with reading(using) as db:
        times = {
            "parked": PARKED_FROM,
            "day_ago": now - timedelta(days=1),
            "lately": start_of(Bucket.MINUTE, now - timedelta(minutes=5)),
            "late": now - timedelta(seconds=LATE_SCHEDULE),
            "since": since,
            "until": now,
        }
        values = {
            **parameters,
            **{name: db.dialect.parameter(time) for name, time in times.items()},
            "lanes": LANES,
            "count": LANES_PROBED,
            "most": COUNTED + 1,
            "latest": LATEST,
            "users": USERS,
            "all": ALL_TYPES,
        }
        statement = with_times(statement, db.dialect)
        rows = db.rows(statement, values, queues=queues, unfinished=UNFINISHED)
        for row in rows:
            found.add(row, db.dialect)
    moving = ("stalled", "running", "parked", "retrying", "scheduled")
    found.is_bounded = any(
        sum(one[kind] for one in found.by_queue.values() for kind in kinds) > COUNTED
        for kinds in (moving, ("blocked",))
    )
    return found


def with_times(statement: str, dialect: Dialect) -> str:
    for name, time in READ.items():
        statement = statement.replace(f"{{{name}}}", dialect.readable(time))
    return statement


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
