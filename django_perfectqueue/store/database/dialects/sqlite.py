"""SQLite: one writer at a time, so a batch is a few local statements with JSON for arrays."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta, timezone
from typing import Any

from django.db import transaction
from django.db.backends.utils import CursorWrapper as Cursor
from django.utils import timezone as clock

from ...values import Completion, Ids, Moment, Now, Stored, Submission
from .base import (
    AWAKE,
    CHARGES,
    INSERT_TICKETS,
    TASK_COLUMNS,
    Closed,
    Dialect,
    Entry,
    Problem,
    naive,
    stored_row,
)

SAID = {
    "is locked": Problem.LOCKED,
    "readonly": Problem.READ_ONLY,
    "is full": Problem.FULL,
    "interrupted": Problem.CUT_SHORT,
    **dict.fromkeys(("unable to open", "disk I/O"), Problem.UNREACHABLE),
    **dict.fromkeys(("no such table", "no such column", "has no column"), Problem.UNMIGRATED),
}

IMMEDIATE = "IMMEDIATE"
# The items of a JSON array; not by ``->>``, which is younger than the oldest SQLite supported.
ITEMS = [f"json_extract(\"value\", '$[{place}]')" for place in range(12)]

to_json = json.JSONEncoder().encode

SUBMIT_TASKS = f"""
INSERT INTO "perfectqueue_task" ({TASK_COLUMNS})
SELECT {", ".join(ITEMS[:6])}, {{now}}, COALESCE({ITEMS[6]}, {{now}}), {", ".join(ITEMS[7:])},
    '', 0, ''
FROM json_each(%(rows)s) WHERE true
ON CONFLICT ("queue", "key") DO NOTHING
RETURNING "queue", "key", "id"
"""

AWAKE_LANE = AWAKE.replace("%(lane)s", '"perfectqueue_ticket"."lane"')
GIVEN_TICKETS = f"""
SELECT {ITEMS[0]} AS "id", {ITEMS[1]} AS "lane", {ITEMS[2]} AS "state", {ITEMS[3]} AS "followed"
FROM json_each(%(rows)s)
"""
SUBMIT_TICKETS = INSERT_TICKETS.replace("{given}", GIVEN_TICKETS)
SUBMIT_TICKETS += f'RETURNING "lane", EXISTS ({AWAKE_LANE})'

CLOSE = f"""
DELETE FROM "perfectqueue_ticket"
WHERE ("task_id", "token") IN (
    SELECT {ITEMS[0]}, {ITEMS[1]} FROM json_each(%(rows)s)
) AND "state" = 2
RETURNING "task_id", "token", "followed", "charged"
"""

FINISH = f"""
UPDATE "perfectqueue_task"
SET "outcome" = 'finished', "attempt" = {ITEMS[2]}, "worker" = %(worker)s,
    "started_at" = {ITEMS[3]}, "ended_at" = {ITEMS[4]}, "result" = {ITEMS[5]}
FROM json_each(%(rows)s) AS "given"
WHERE "perfectqueue_task"."id" = {ITEMS[0]}
"""

GIVEN = ", ".join([f'{ITEMS[place]} AS "{name}"' for place, name in enumerate(Entry._fields)])
CHARGE = f"""
UPDATE "perfectqueue_account" AS "account" SET {CHARGES}
FROM (SELECT {GIVEN} FROM json_each(%(rows)s)) AS "given"
WHERE "account"."id" = "given"."account"
"""


class Immediate(transaction.Atomic):
    """
    A block that takes the lock of writers when it begins.

    A transaction that has read can't wait for the writer who overtook it.
    """

    def __enter__(self) -> None:
        connection: Any = transaction.get_connection(self.using)
        mode, connection.transaction_mode = connection.transaction_mode, IMMEDIATE
        try:
            super().__enter__()
        finally:
            connection.transaction_mode = mode


class SQLite(Dialect):
    hosts_clock = True
    one_writer = True
    lock_clause = change_clause = share_clause = skip_clause = skip_changed_clause = ""
    clock = given_clock = "%(now)s"

    def atomic(self, connection: Any) -> AbstractContextManager[None]:
        if connection.connection is None:
            connection.ensure_connection()
        if connection.transaction_mode == IMMEDIATE:
            return super().atomic(connection)
        return Immediate(connection.alias, savepoint=True, durable=False)

    def after(self, name: str, seconds: float | None, now: Now) -> tuple[str, object]:
        if seconds is None:
            return f"%({name})s", None
        return f"%({name})s", stamp((now or clock.now()) + timedelta(seconds=seconds))

    def parameter(self, moment: datetime | None) -> str:
        return str(naive(moment or clock.now()))

    def moment(self, value: datetime | str) -> datetime:
        read = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return read.replace(tzinfo=timezone.utc)

    def problem_of(self, error: Exception) -> Problem:
        message = str(error)
        return next((found for words, found in SAID.items() if words in message), Problem.OTHER)

    def submit(self, cursor: Cursor, tasks: Sequence[Submission], now: Now) -> Ids:
        now = now or clock.now()
        rows = [
            [
                stamp_of(value, now) if isinstance(value, datetime | timedelta) else value
                for value in stored_row(task).values()
            ]
            for task in tasks
        ]
        stored = self.execute(cursor, SUBMIT_TASKS, {"rows": to_json(rows)}, now=now).fetchall()
        ids = Stored({(queue, key): task_id for queue, key, task_id in stored})
        tickets = [
            (ids[task.queue, task.key], task.lane, task.state, task.followed)
            for task in tasks
            if (task.queue, task.key) in ids
        ]
        if tickets:
            # Nobody else writes until the commit, so what is awake now is so then.
            lanes = self.execute(cursor, SUBMIT_TICKETS, {"rows": to_json(tickets)})
            ids.awake = {lane for lane, is_awake in lanes.fetchall() if is_awake}
        return ids

    def finish(
        self, cursor: Cursor, completions: Sequence[Completion], worker: str, now: Now
    ) -> Closed:
        zero = naive(now or clock.now()) - timedelta(seconds=time.monotonic())
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

    def charge(self, cursor: Cursor, entries: Sequence[Entry], now: Now) -> int | None:
        self.execute(cursor, CHARGE, {"rows": to_json(entries)}, now=now)
        return None


def stamp_of(moment: Moment, now: datetime) -> str:
    """Return a time, or a span from now, as stamp() does."""
    return stamp(now + moment if isinstance(moment, timedelta) else moment)


def stamp(moment: datetime) -> str:
    """Return a time as Django stores it in SQLite, so that texts compare like times."""
    return str(naive(moment))
