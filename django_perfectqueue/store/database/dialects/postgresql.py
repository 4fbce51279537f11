"""
PostgreSQL: each verb is one statement, and arrays carry the batch.

Rows are reached by ``= ANY(ARRAY(SELECT ...))``: the planner takes such an array to be
short, and goes by the primary key however small or large the table. But not where it would
join row by row, as with the few rows that it expects of a DELETE: each row would sort the
array anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from typing import get_type_hints

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper as Cursor

from ...values import ENDED, Completion, Now
from .base import CHARGES, Closed, Entry, numbers
from .packet import packets, unanswered
from .postgresql_server import (
    COMMIT_AND_WAIT,
    COMMIT_ASYNCHRONOUSLY,
    array,
    begun_with_first,
    end,
    filled_for,
    is_psycopg3,
    texts,
    without_waiting,
)
from .postgresql_submit import PostgreSQLAlone, PostgreSQLSubmit

NOTIFY_END = f"pg_notify('{ENDED}' || \"task_id\", '')"
NOTIFY_ENDS = NOTIFY_END.replace("task_id", "id")

FINISH = f"""
WITH "given" AS (
    SELECT * FROM unnest(
        %(id)s::bigint[], %(token)s::bigint[], %(attempt)s::int[], %(started)s::float8[],
        %(ended)s::float8[], %(result)s::text[]
    ) AS "given" ("id", "token", "attempt", "started", "ended", "result")
),
"closed" AS (
    DELETE FROM "perfectqueue_ticket" AS "ticket" USING "given"
    WHERE "ticket"."task_id" = ANY(ARRAY(SELECT "id" FROM "given"))
        AND "ticket"."task_id" = "given"."id" AND "ticket"."token" = "given"."token"
        AND "ticket"."state" = 2
    RETURNING "given".*, "ticket"."watched", "ticket"."followed", "ticket"."charged"
),
"ended" AS (
    UPDATE "perfectqueue_task" AS "task"
    SET "outcome" = 'finished', "attempt" = "closed"."attempt", "worker" = %(worker)s,
        "started_at" = {{now}} - "closed"."started" * interval '1 second',
        "ended_at" = {{now}} - "closed"."ended" * interval '1 second',
        "result" = "closed"."result"
    FROM "closed" WHERE "task"."id" = "closed"."id"
    RETURNING "task"."id", "closed"."token", "closed"."followed", "closed"."charged"
)
SELECT *, (SELECT count({NOTIFY_ENDS}) FROM "closed" WHERE "watched") FROM "ended"
"""

REMOVE = f"""
DELETE FROM "perfectqueue_ticket" WHERE "task_id" IN ({{ids}})
RETURNING "task_id", "followed", CASE WHEN "watched" THEN {NOTIFY_END} END
"""

# By the types of an entry, those of the arrays in which its values come.
KINDS = {int: "bigint", float: "float8", bool: "boolean"}
ARRAYS = [f"%({name})s::{KINDS[kind]}[]" for name, kind in get_type_hints(Entry).items()]
LOCK = """
SELECT "id" FROM "perfectqueue_account" WHERE "id" = ANY(%(account)s::bigint[])
ORDER BY "id" FOR UPDATE
"""
CHARGE = f"""
UPDATE "perfectqueue_account" AS "account" SET {CHARGES}
FROM unnest({", ".join(ARRAYS)}) AS "given" ({", ".join(Entry._fields)})
WHERE "account"."id" = ANY(%(account)s::bigint[]) AND "account"."id" = "given"."account"
"""

END_IDLE_TRANSACTIONS = """
/* perfectqueue */ SELECT set_config('idle_in_transaction_session_timeout', %s, false)
WHERE current_setting('idle_in_transaction_session_timeout') = '0'
"""
LET_STAND = """
/* perfectqueue */ SELECT current_setting('idle_in_transaction_session_timeout'),
    set_config('idle_in_transaction_session_timeout', %s, true)
"""
LET_STAND_AS_BEFORE = "/* perfectqueue */ SET LOCAL idle_in_transaction_session_timeout TO "


class PostgreSQL(PostgreSQLAlone, PostgreSQLSubmit):
    filled = staticmethod(filled_for)
    begun = staticmethod(begun_with_first)
    notifies = True
    keeps_dead_entries = True
    plans_laterally = True
    removal = REMOVE
    change_clause = " FOR NO KEY UPDATE"
    keep_clause = " FOR KEY SHARE"
    skip_changed_clause = " FOR NO KEY UPDATE SKIP LOCKED"
    clock = "statement_timestamp()"
    moving_clock = "clock_timestamp()"
    given_clock = "%(now)s::timestamptz"
    asynchronous_commit = ", (SELECT set_config('synchronous_commit', 'off', true))"

    def commit_asynchronously(self, cursor: Cursor) -> None:
        packets[cursor.db].end = COMMIT_ASYNCHRONOUSLY

    def end_idle_transactions(self, cursor: Cursor, seconds: float) -> None:
        cursor.execute(END_IDLE_TRANSACTIONS, [str(math.ceil(seconds * 1000))])

    def set_idle_timeout(self, cursor: Cursor, seconds: float | None) -> str | None:
        with without_waiting(cursor.db):
            cursor.execute(LET_STAND, [str(math.ceil((seconds or 0) * 1000))])
        before, _now = cursor.fetchone()
        return None if before == "0" else f"{LET_STAND_AS_BEFORE}'{before}'"

    def commit_before_disk(self, connection: BaseDatabaseWrapper) -> None:
        # With psycopg2 commit() would go to the server all the same.
        if is_psycopg3():
            end(connection, COMMIT_AND_WAIT)

    def with_numbers(self, sql: str, name: str, values: Collection[int]) -> str:
        # The server reads one text in half the time of many numbers; the plan is the same.
        if len(values) > 1:
            listed, array = f"IN ({{{name}}})", f"('{{{numbers(values)}}}'::bigint[])"
            sql = sql.replace(f"NOT {listed}", f"<> ALL {array}").replace(listed, f"= ANY {array}")
        return super().with_numbers(sql, name, values)

    def later(self, seconds: str) -> str:
        return f"{{now}} + {seconds} * interval '1 second'"

    def finish(
        self, cursor: Cursor, completions: Sequence[Completion], worker: str, now: Now
    ) -> Closed:
        monotonic = time.monotonic()
        parameters = {
            "id": array([done.lease.task_id for done in completions]),
            "token": array([done.lease.token for done in completions]),
            "attempt": array([done.lease.attempt for done in completions]),
            "started": array([f"{monotonic - done.started:.6f}" for done in completions]),
            "ended": array([f"{monotonic - done.ended:.6f}" for done in completions]),
            "result": texts([done.result for done in completions]),
            "worker": worker,
        }
        rows = self.execute(cursor, FINISH, parameters, now=now).fetchall()
        return {(task_id, token): (by, charged) for task_id, token, by, charged, _told in rows}

    def charge(self, cursor: Cursor, entries: Sequence[Entry], now: Now) -> int | None:
        columns = zip(Entry._fields, zip(*entries, strict=True), strict=True)
        values = {name: array(given) for name, given in columns}
        # A statement that waits for a lock does not see the tickets that come meanwhile, and who
        # submits them sees the lane awake: so one before waits for the locks.
        cursor = unanswered(cursor)
        self.execute(cursor, LOCK, {"account": values["account"]})
        self.execute(cursor, CHARGE, values, now=now)
        if cursor.db in packets:
            # Others that charge the same accounts need not wait for the disk.
            packets[cursor.db].end = COMMIT_AND_WAIT
        return None
