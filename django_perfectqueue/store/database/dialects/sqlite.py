"""SQLite: one writer at a time, so a batch is a few local statements with JSON for arrays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from django.db.backends.utils import CursorWrapper as Cursor
from django.utils import timezone as clock

from django_perfectqueue.models.fields import READABLE

from ...values import Completion, Moment, Stored, Submission
from ..diagnosis import Problem
from .base import (
    AWAKE,
    UNPREPARED,
    Closed,
    Dialect,
    Entry,
    FinishReport,
    average,
    naive,
)

SAID = {
    "is locked": Problem.LOCKED,
    "readonly": Problem.READ_ONLY,
    "is full": Problem.FULL,
    "unable to open": Problem.UNREACHABLE,
    "disk I/O": Problem.UNREACHABLE,
    "no such table": Problem.UNMIGRATED,
    "no such column": Problem.UNMIGRATED,
    "has no column": Problem.UNMIGRATED,
    "interrupted": Problem.CUT_SHORT,
}

IMMEDIATE = "IMMEDIATE"
ITEM = re.compile(r'((?:"given"\.)?"value") ->> (\d+)')


to_json = json.JSONEncoder().encode


def portable(sql: str) -> str:
    """Return the SQL without ``->>``, which is younger than the oldest SQLite supported."""
    return ITEM.sub(r"json_extract(\1, '$[\2]')", sql)


SUBMIT_TASKS = portable(
    """
INSERT INTO "perfectqueue_task" (
    "queue", "key", "type", "user", "data", "priority", "created_at", "run_at", "expected_at",
    "expires_at", "limits", "time_limit", "context", "outcome", "attempt", "worker"
)
SELECT "value" ->> 0, "value" ->> 1, "value" ->> 2, "value" ->> 3, "value" ->> 4, "value" ->> 5,
    {now}, COALESCE("value" ->> 6, {now}), "value" ->> 7, "value" ->> 8, "value" ->> 9,
    "value" ->> 10, "value" ->> 11, '', 0, ''
FROM json_each(%(rows)s) WHERE true
ON CONFLICT ("queue", "key") DO NOTHING
RETURNING "queue", "key", "id"
"""
)

SUBMIT_TICKETS = portable(
    f"""
INSERT INTO "perfectqueue_ticket" (
    "task_id", "lane", "state", "rank", "run_at", "timer_at", "attempt", "errors", "crashes",
    "cancel_requested"
)
SELECT "value" ->> 0, "value" ->> 1, "value" ->> 3 IS NOT NULL, -("value" ->> 2),
    COALESCE("value" ->> 4, "value" ->> 3, {{now}}), "value" ->> 3, 0, 0, 0, 0
FROM json_each(%(rows)s)
RETURNING "lane", EXISTS ({AWAKE.replace("%(lane)s", '"perfectqueue_ticket"."lane"')})
"""
)


CLOSE = portable(
    """
DELETE FROM "perfectqueue_ticket"
WHERE ("task_id", "token") IN (
    SELECT "value" ->> 0, "value" ->> 1 FROM json_each(%(rows)s)
) AND "state" = 2
RETURNING "task_id", "token", "followed", "charged"
"""
)

FINISH = portable(
    """
UPDATE "perfectqueue_task"
SET "outcome" = 'finished', "attempt" = "given"."value" ->> 2, "worker" = %(worker)s,
    "started_at" = "given"."value" ->> 3, "ended_at" = "given"."value" ->> 4,
    "result" = "given"."value" ->> 5
FROM json_each(%(rows)s) AS "given"
WHERE "perfectqueue_task"."id" = "given"."value" ->> 0
"""
)

CHARGE = portable(
    f"""
UPDATE "perfectqueue_account"
SET "running" = "running" + ("given"."value" ->> 1),
    "virtual_time" = "virtual_time" + ("given"."value" ->> 2) / "weight",
    "cost" = {average('"cost"', mean='("given"."value" ->> 3)', keep='("given"."value" ->> 4)')},
    "since" = CASE WHEN "given"."value" ->> 5 THEN {{now}} ELSE "since" END,
    "finish_tag" = MAX("finish_tag", "given"."value" ->> 6)
FROM json_each(%(rows)s) AS "given"
WHERE "perfectqueue_account"."id" = "given"."value" ->> 0
"""
)


@contextmanager
def immediate(connection: Any) -> Iterator[None]:
    mode = connection.transaction_mode
    connection.transaction_mode = IMMEDIATE
    try:
        yield
    finally:
        connection.transaction_mode = mode


class SQLite(Dialect):
    hosts_clock = True
    one_writer = True
    clock = given_clock = "%(now)s"

    def writing(self, connection: Any) -> AbstractContextManager[None]:
        # A transaction that has read can't wait for the writer who overtook it.
        if connection.connection is None:
            connection.ensure_connection()
        return UNPREPARED if connection.transaction_mode == IMMEDIATE else immediate(connection)

    def after(self, name: str, seconds: float | None, now: datetime | None) -> tuple[str, object]:
        if seconds is None:
            return f"%({name})s", None
        return f"%({name})s", stamp((now or clock.now()) + timedelta(seconds=seconds))

    def parameter(self, moment: datetime | None) -> str:
        return str(naive(moment or clock.now()))

    def moment(self, value: datetime | str) -> datetime:
        read = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return read.replace(tzinfo=timezone.utc)

    def readable(self, time: str) -> str:
        return READABLE["sqlite"].replace("{time}", time)

    def passes(self, error: Exception) -> bool:
        message = str(error)
        return "database is locked" in message or "database table is locked" in message

    def problem_of(self, error: Exception) -> Problem:
        message = str(error)
        return next((found for words, found in SAID.items() if words in message), Problem.OTHER)

    def lock_clause(self) -> str:
        return ""

    def share_clause(self) -> str:
        return ""

    def skip_clause(self) -> str:
        return ""

    def submit(
        self, cursor: Cursor, tasks: Sequence[Submission], now: datetime | None
    ) -> dict[tuple[str, str], int]:
        now = now or clock.now()
        each = [(task.run_at, task.expected_at, task.expires_at) for task in tasks]
        moments = [
            tuple([None if at is None else stamp_of(at, now) for at in times]) for times in each
        ]
        rows = [
            (
                task.queue,
                task.key,
                task.type,
                task.user,
                task.payload,
                task.priority,
                *times,
                ",".join(task.limits),
                task.time_limit,
                task.context,
            )
            for task, times in zip(tasks, moments, strict=True)
        ]
        stored = self.execute(cursor, SUBMIT_TASKS, {"rows": to_json(rows)}, now=now).fetchall()
        ids = Stored({(queue, key): task_id for queue, key, task_id in stored})
        tickets = [
            (ids[task.queue, task.key], task.lane, task.priority, run_at, expected_at)
            for task, (run_at, expected_at, _) in zip(tasks, moments, strict=True)
            if (task.queue, task.key) in ids
        ]
        if tickets:
            # Nobody else writes until the commit, so what is awake now is so then.
            lanes = self.execute(cursor, SUBMIT_TICKETS, {"rows": to_json(tickets)}, now=now)
            ids.awake = {lane for lane, is_awake in lanes.fetchall() if is_awake}
        return ids

    def finish(
        self, cursor: Cursor, completions: Sequence[Completion], report: FinishReport
    ) -> Closed:
        worker, monotonic, now = report
        zero = naive(now or clock.now()) - timedelta(seconds=monotonic)
        rows = [
            (
                done.lease.task_id,
                done.lease.token,
                done.lease.attempt,
                str(zero + timedelta(seconds=done.started)),
                str(zero + timedelta(seconds=done.ended)),
                done.result,
            )
            for done in completions
        ]
        written = to_json(rows)
        closed = self.execute(cursor, CLOSE, {"rows": written}).fetchall()
        fences = {(task_id, token): (by, charged) for task_id, token, by, charged in closed}
        if len(fences) < len(rows):
            written = to_json([row for row in rows if row[:2] in fences])
        if fences:
            self.execute(cursor, FINISH, {"rows": written, "worker": worker})
        return fences

    def charge(self, cursor: Cursor, entries: Sequence[Entry], now: datetime | None) -> None:
        self.execute(cursor, CHARGE, {"rows": to_json(entries)}, now=now)


def stamp_of(moment: Moment, now: datetime) -> str:
    """Return a time, or a span from now, as stamp() does."""
    return stamp(now + moment if isinstance(moment, timedelta) else moment)


def stamp(moment: datetime) -> str:
    """Return a time as Django stores it in SQLite, so that texts compare like times."""
    return str(naive(moment))
