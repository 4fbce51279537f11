"""Tables as they are after months of use, filled by a few statements however many rows."""

import os
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from django.core.management.color import no_style
from django.db import connection

from django_perfectqueue.models import (
    Account,
    Attempt,
    DeadLetter,
    FairShare,
    State,
    Task,
    Ticket,
    Worker,
)
from django_perfectqueue.store.arithmetic.fair_order import lane_id

TABLES = (Task, Ticket, Attempt, DeadLetter, Account, FairShare, Worker)
SCALE = int(os.environ.get("PERFECTQUEUE_SCALE", "80000"))
RETENTION = 30 * 86_400.0
TASKS_OF_ONE = 4

MIXED = {
    "finished": 45,
    "waiting": 20,
    "scheduled": 12,
    "retrying": 6,
    "blocked": 5,
    "running": 5,
    "failed": 5,
    "cancelled": 2,
}
LIVE = {
    "waiting": State.WAITING,
    "scheduled": State.SCHEDULED,
    "retrying": State.SCHEDULED,
    "running": State.RUNNING,
    "blocked": State.BLOCKED,
}


def mostly(status):
    """Return a mix of which nearly all is in one status."""
    return {status: 93, **{other: 1 for other in MIXED if other != status}}


@dataclass
class Filling:
    """
    Tasks of so many users in two queues, some of whom have tasks that have yet to end.

    Statuses are mixed all through the ids. What has ended did so the earlier the smaller
    its id is, the oldest tenth of it longer ago than RETENTION.
    """

    busy: int = 400
    users: int = 0
    count: int = 0
    start: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def grow(self, count, mix=MIXED):
        """Add so many tasks."""
        assert sum(mix.values()) == 100, mix
        with connection.cursor() as cursor:
            first, self.count = self.count, self.count + count
            self.add_owners(cursor)
            if connection.vendor == "mysql":
                cursor.execute(f"SET SESSION {LONGEST_SERIES[connection.mysql_is_mariadb]}")
            for statement in (DRAFT, *FILL):
                cursor.execute(self.written(statement, mix), self.values(first))
            cursor.execute("DELETE FROM scale_draft")
            for statement in connection.ops.sequence_reset_sql(no_style(), [Task, Attempt]):
                cursor.execute(statement)

    def clear(self):
        """Empty the tables, and begin anew."""
        self.count = self.users = 0
        with connection.cursor() as cursor:
            for table in TABLES:
                name = connection.ops.quote_name(table._meta.db_table)
                verb = "DELETE FROM" if connection.vendor == "sqlite" else "TRUNCATE TABLE"
                cursor.execute(f"{verb} {name}")
            for name in ("scale_owner", "scale_draft"):
                cursor.execute(f"DROP TABLE IF EXISTS {name}")

    def add_owners(self, cursor):
        """Make more lanes, of which those with work are awake, and as many shares of others."""
        for statement in MADE:
            cursor.execute(statement)
        known, self.users = self.users, max(self.busy, self.count // TASKS_OF_ONE)
        for first in range(0, self.users, 1000):
            rows = [owner(number) for number in range(first, min(first + 1000, self.users))]
            values = ", ".join(["(%s, %s, %s, %s)"] * len(rows))
            flat = [value for row in rows for value in row]
            cursor.execute(f"INSERT INTO scale_owner VALUES {values}", flat)
        for statement in FILL_OWNERS:
            cursor.execute(self.written(statement, MIXED), {"known": known, "busy": self.busy})

    def values(self, first):
        return {
            "first": first + 1,
            "last": self.count,
            "users": self.users,
            "busy": self.busy,
            "step": RETENTION / max(self.count, 1),
            "long_ago": stamp(self.start - timedelta(seconds=1.1 * RETENTION)),
            "lately": stamp(self.start - timedelta(hours=1)),
            "tomorrow": stamp(self.start + timedelta(days=1)),
            "lease": stamp(self.start + timedelta(hours=1)),
        }

    def written(self, statement, mix):
        """Return a statement in the database's own words."""
        for word, sql in (("<status>", status_of(mix)), ("<state>", state_of())):
            statement = statement.replace(word, sql)
        for name, pace in PACES.items():
            statement = statement.replace(f"<{name}>", moment(name, pace))
        for name, number in LABELS.items():
            statement = statement.replace(f"<{name}>", label(name, number))
        return statement.replace('"', "`") if connection.vendor == "mysql" else statement


def owner(number):
    """Return a number with its queue, user and lane; every tenth user has another queue."""
    queue, user = "other" if number % 10 == 9 else "default", f"user{number}"
    return number, queue, user, lane_id(queue, user)


def status_of(mix):
    """Return the SQL of a task's status by its number, each in its share of any hundred."""
    parts, total = [], 0
    for status, share in mix.items():
        total += share
        parts.append(f"WHEN n %% 10007 * 7919 %% 10007 %% 100 < {total} THEN '{status}'")
    return f"CASE {' '.join(parts)} END"


def state_of():
    parts = [f"WHEN '{status}' THEN {state.value}" for status, state in LIVE.items()]
    return f"CASE status {' '.join(parts)} END"


def stamp(when):
    return when if connection.vendor == "postgresql" else str(when.replace(tzinfo=None))


def moment(name, seconds):
    """Return the SQL of a time so many seconds behind a parameter."""
    if connection.vendor == "postgresql":
        return f"(%({name})s::timestamptz + ({seconds}) * interval '1 second')"
    if connection.vendor == "mysql":
        return f"TIMESTAMPADD(SECOND, {seconds}, %({name})s)"
    return f"datetime(%({name})s, ({seconds}) || ' seconds')"


def label(name, number):
    if connection.vendor == "mysql":
        return f"CONCAT('{name}-', {number})"
    return f"('{name}-' || {number})"


LABELS = {"key": "id", "share": "number", "type": "(id %% 30)", "error": "(id %% 20)"}
PACES = {"long_ago": "id * %(step)s", "lately": "id %% 3000", "tomorrow": "id", "lease": "id"}
LONGEST_SERIES = {
    True: "max_recursive_iterations = 4294967295",
    False: "cte_max_recursion_depth = 4294967295",
}
MADE = (
    "DROP TABLE IF EXISTS scale_owner",
    "CREATE TEMPORARY TABLE scale_owner (number bigint PRIMARY KEY, queue varchar(20),"
    " username varchar(20), lane bigint)",
    "DROP TABLE IF EXISTS scale_draft",
    "CREATE TEMPORARY TABLE scale_draft (id bigint PRIMARY KEY, status varchar(20),"
    " queue varchar(20), username varchar(20), lane bigint)",
)
FILL_OWNERS = (
    """
INSERT INTO "perfectqueue_account" (
    "id", "policy", "queue", "user", "virtual_time", "cost", "weight", "paused", "running",
    "has_waiting", "since"
)
SELECT lane, 0, queue, username, 1000 + number %% 97, 1, 1, 0 = 1, 0, number < %(busy)s,
    CURRENT_TIMESTAMP
FROM scale_owner WHERE number >= %(known)s
""",
    """
INSERT INTO "perfectqueue_fairshare" ("user", "queue", "weight", "paused")
SELECT <share>, '', 2, number %% 25 = 7 FROM scale_owner WHERE number >= %(known)s
""",
)
DRAFT = """
INSERT INTO scale_draft
WITH RECURSIVE numbers (n) AS (
    SELECT %(first)s UNION ALL SELECT n + 1 FROM numbers WHERE n < %(last)s
)
SELECT n, status, queue, username, lane
FROM (SELECT n, <status> AS status FROM numbers) AS numbered
JOIN scale_owner ON number = n %% CASE
    WHEN status IN ('finished', 'failed', 'cancelled') THEN %(users)s ELSE %(busy)s
END
"""
FILL = (
    """
INSERT INTO "perfectqueue_task" (
    "id", "queue", "key", "type", "user", "data", "priority", "created_at", "run_at", "limits",
    "outcome", "attempt", "worker", "started_at", "ended_at", "result"
)
SELECT id, queue, <key>, <type>, username,
    '{"some":"data"}', 0, <long_ago>, <long_ago>, '', outcome, 1, 'host:1',
    CASE WHEN outcome <> '' THEN <long_ago> END, CASE WHEN outcome <> '' THEN <long_ago> END, '1'
FROM (
    SELECT id, queue, username,
        CASE WHEN status IN ('finished', 'failed', 'cancelled') THEN status ELSE '' END AS outcome
    FROM scale_draft
) AS draft
ORDER BY id
""",
    """
INSERT INTO "perfectqueue_ticket" (
    "task_id", "lane", "state", "rank", "run_at", "timer_at", "attempt", "errors", "crashes",
    "last_ending", "holder", "cancel_requested"
)
SELECT id, lane, <state>, 0, <lately>,
    CASE status WHEN 'running' THEN <lease> WHEN 'scheduled' THEN <tomorrow>
        WHEN 'retrying' THEN <tomorrow> END,
    CASE WHEN status IN ('running', 'retrying') THEN 1 ELSE 0 END,
    CASE WHEN status = 'retrying' THEN 1 ELSE 0 END, 0,
    CASE WHEN status IN ('running', 'retrying') THEN 1 ELSE 0 END,
    CASE WHEN status = 'running' THEN id %% 20 END, 0 = 1
FROM scale_draft
WHERE status NOT IN ('finished', 'failed', 'cancelled')
ORDER BY id
""",
    """
INSERT INTO "perfectqueue_deadletter" (
    "task_id", "status", "group", "message", "errors", "crashes", "ended_at"
)
SELECT id, status, <error>, 'It broke.', 1, 0, <long_ago>
FROM scale_draft WHERE status IN ('failed', 'cancelled')
ORDER BY id
""",
    """
INSERT INTO "perfectqueue_attempt" (
    "task_id", "number", "ending", "worker", "started_at", "ended_at", "error", "message",
    "traceback"
)
SELECT id, 1, 'retried', 'host:1', <long_ago>, <long_ago>, 'error', 'It broke.', 'Traceback'
FROM scale_draft WHERE status IN ('failed', 'retrying', 'running')
ORDER BY id
""",
)
