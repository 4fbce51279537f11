"""Submit on PostgreSQL: many tasks by one statement, one task by one packet."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper as Cursor

from ...values import CHANNEL, Chunk, Ids, Now, Submission
from . import postgresql_server
from .base import AWAKE, TASK_COLUMNS, TICKET_COLUMNS, Dialect, stored_row

SUBMIT = """
WITH "clock" AS (
    SELECT {now} AS "now",
        pg_get_serial_sequence('"perfectqueue_task"', 'id')::regclass AS "ids"
),
"given" AS MATERIALIZED (
    SELECT nextval("clock"."ids") AS "id", "now", "place", {columns}
    FROM "clock", unnest({arrays}) WITH ORDINALITY AS "array" ({names}, "place")
),
"stored" AS (
    INSERT INTO "perfectqueue_task" ("id", {task_columns})
    SELECT "id", "queue", "key", "type", "user", "data", "priority", "now",
        COALESCE("run_at", "now"), "expected_at", "expires_at", "limits", "time_limit",
        "context", '', 0, ''
    FROM "given" {returned}
),
"ticket" AS (
    INSERT INTO "perfectqueue_ticket" ({ticket_columns})
    SELECT "id", "lane", "state", -"priority", COALESCE("expected_at", "run_at", "now"),
        CASE WHEN "state" = 1 THEN "run_at" END, 0, 0, 0, false, "followed"
    FROM "given" {kept}
)
SELECT "id", "place" FROM "given" {kept}
"""
IF_FREE = 'ON CONFLICT ("queue", "key") DO NOTHING RETURNING "id"'
BUT_TAKEN = 'JOIN "stored" USING ("id")'
COLUMNS = {
    "queue": "text",
    "key": "text",
    "type": "text",
    "user": "text",
    "data": "text",
    "priority": "int",
    "run_at": "timestamptz",
    "expected_at": "timestamptz",
    "expires_at": "timestamptz",
    "limits": "text",
    "time_limit": "float8",
    "context": "text",
    "lane": "bigint",
    "state": "smallint",
    "followed": "bigint",
}

SUBMIT = SUBMIT.replace("{task_columns}", TASK_COLUMNS)
SUBMIT = SUBMIT.replace("{ticket_columns}", TICKET_COLUMNS)
SUBMIT_IF_FREE = SUBMIT.replace("{returned}", IF_FREE).replace("{kept}", BUT_TAKEN)
SUBMIT_ALL = SUBMIT.replace("{returned}", "").replace("{kept}", "")

TIMES_AND_SPANS = """ARRAY(
    SELECT CASE
        WHEN left("at", 1) = '+' THEN {now} + substr("at", 2)::float8 * interval '1 second'
        ELSE "at"::timestamptz
    END
    FROM unnest(%({name})s::text[]) WITH ORDINALITY AS "time" ("at", "place") ORDER BY "place"
)"""


class PostgreSQLSubmit(Dialect):
    def cursor_ahead(self, connection: BaseDatabaseWrapper, tasks: Chunk) -> Any:
        # These would not see a statement that Django does not send.
        watched = connection.execute_wrappers or connection.queries_logged
        several = postgresql_server.takes_several_statements(connection)
        if watched or not several or not postgresql_server.is_psycopg3():
            return None
        begins, wire = connection.get_autocommit(), connection.connection
        status = wire.info.transaction_status
        if begins and status == postgresql_server.IDLE:
            return CursorAhead(connection, wire, tasks, APART)
        # In the caller's transaction the driver sends BEGIN with the first statement of its own.
        return CursorAhead(connection, wire, tasks, IN_CALLERS) if status == OPEN else None

    def submit(self, cursor: Cursor, tasks: Sequence[Submission], now: Now) -> Ids:
        return self.insert(cursor, SUBMIT_IF_FREE, tasks, now)

    def submit_free(self, cursor: Cursor, tasks: Sequence[Submission], now: Now) -> Ids:
        return self.insert(cursor, SUBMIT_ALL, tasks, now)

    def insert(self, cursor: Cursor, statement: str, tasks: Sequence[Submission], now: Now) -> Ids:
        """Store tasks; a column that is the same in all is sent once."""
        fields = dict(zip(Submission._fields, zip(*tasks, strict=True), strict=True))
        fields["data"] = fields["payload"]
        fields["state"] = tuple([task.state for task in tasks])
        parameters: dict[str, object] = {}
        columns, arrays = [], []
        for name, kind in COLUMNS.items():
            values = fields[name]
            if name != "key" and values.count(values[0]) == len(values):
                sql, parameters[name] = same(name, kind, values[0])
                columns.append(f'{sql} AS "{name}"')
            else:
                sql, parameters[name] = listed(name, kind, values)
                columns.append(f'"{name}"')
                arrays.append((name, sql))
        parts = {
            "{columns}": ", ".join(columns),
            "{arrays}": ", ".join(sql for _name, sql in arrays),
            "{names}": ", ".join(f'"{name}"' for name, _sql in arrays),
        }
        for mark, sql in parts.items():
            statement = statement.replace(mark, sql)
        rows = self.execute(cursor, statement, parameters, now=now).fetchall()
        names = list(zip(fields["queue"], fields["key"], strict=True))
        return {names[place - 1]: task_id for task_id, place in rows}


def same(name: str, kind: str, value: Any) -> tuple[str, object]:
    """Return the SQL and the parameter of a column that has one value in all tasks."""
    if isinstance(value, timedelta):
        return f'"now" + %({name})s::interval', f"{value.total_seconds()} seconds"
    return f"%({name})s::{kind}", ",".join(value) if name == "limits" else value


def listed(name: str, kind: str, values: Sequence[Any]) -> tuple[str, str]:
    """Return the SQL and the parameter of a column as an array."""
    if kind == "timestamptz":
        spans = any(isinstance(at, timedelta) for at in values)
        sql = TIMES_AND_SPANS.replace("{name}", name) if spans else f"%({name})s::timestamptz[]"
        return sql, postgresql_server.array(map(postgresql_server.time_of, values))
    items = map(",".join, values) if name == "limits" else values
    array = postgresql_server.texts if kind == "text" else postgresql_server.array
    return f"%({name})s::{kind}[]", array(items)


# By psycopg 3 the server stores tasks while the program prepares the next.


# What libpq calls a connection in a transaction.
OPEN = 2
APART = postgresql_server.BEGIN, "COMMIT", "ROLLBACK"
IN_CALLERS = "SAVEPOINT pq_ahead", "RELEASE SAVEPOINT pq_ahead", "ROLLBACK TO SAVEPOINT pq_ahead"


@dataclass
class CursorAhead:
    """
    Sends one INSERT in a transaction of its own, or in a savepoint of the caller's.

    Django does not know of that: the program goes on in the transaction in which it is. Whatever
    it sends on the connection, directly or by Django, first waits for the answer and commits.
    """

    connection: BaseDatabaseWrapper
    wire: Any
    tasks: Chunk
    steps: tuple[str, str, str]
    sent: float = field(default_factory=time.monotonic)
    error: BaseException | None = None
    fresh: Ids = field(default_factory=dict)

    def execute(self, sql: str, parameters: object) -> None:
        with self.connection.wrap_database_errors, self.connection.cursor() as cursor:
            text = cursor.mogrify(sql, parameters)
            try:
                self.send(f"{self.steps[0]}; {text}")
            finally:
                # All calls of the driver wait by this method.
                self.wire.wait = self.wait
                self.tasks.ahead = self

    def fetchall(self) -> list[tuple[int, int]]:
        return []

    def wait(self, *arguments: Any, **options: Any) -> Any:
        self.arrive()
        return self.wire.wait(*arguments, **options)

    def arrive(self) -> None:
        """Wait for the answer, and commit; note an error for arrival(), a stop is raised, too."""
        if vars(self.wire).pop("wait", None) is None:
            return
        _begin, commit, undo = self.steps
        try:
            rows = self.answer()
            for row in range(rows.ntuples):
                task = self.tasks[int(rows.get_value(row, 1)) - 1]
                self.fresh[task.queue, task.key] = int(rows.get_value(row, 0))
            self.send(commit)
            self.answer()
        except BaseException as error:
            self.error = error
            with suppress(Exception):
                self.send(undo)
                self.answer()
            if not isinstance(error, Exception):
                raise

    def send(self, text: str) -> None:
        from psycopg.generators import send

        self.wire.pgconn.send_query(text.encode(self.wire.info.encoding))
        self.wire.wait(send(self.wire.pgconn))

    def answer(self) -> Any:
        """Return the last result; raise its error."""
        from psycopg import errors, generators

        last = self.wire.wait(generators.fetch_many(self.wire.pgconn))[-1]
        if last.error_message:
            raise errors.error_from_result(last, self.wire.info.encoding)
        return last

    def arrival(self, tries: list[Any]) -> Ids:
        """Return what was stored, noted in ``tries`` for a commit that may have failed."""
        self.arrive()
        if self.fresh:
            tries.append(self.fresh)
        if self.error is not None:
            with self.connection.wrap_database_errors:
                raise self.error
        return self.fresh


# PostgreSQL: a task submitted by itself goes as one packet, which a connection prepares.


TIMES = ("run_at", "expected_at", "expires_at")
KINDS = {**COLUMNS, **dict.fromkeys(TIMES, "text"), "token": "bigint", "message": "text"}
TIME = """CASE
    WHEN left(%({name})s::text, 1) = '+'
    THEN statement_timestamp() + substr(%({name})s::text, 2)::float8 * interval '1 second'
    ELSE %({name})s::text::timestamptz
END"""
STORE = """
WITH "stored" AS (
    INSERT INTO "perfectqueue_task" ({task_columns}) VALUES (
        %(queue)s, %(key)s, %(type)s, %(user)s, %(data)s, %(priority)s, statement_timestamp(),
        COALESCE({run_at}, statement_timestamp()), {expected_at}, {expires_at}, %(limits)s,
        %(time_limit)s, %(context)s, '', 0, ''
    )
    ON CONFLICT ("queue", "key") DO NOTHING RETURNING "id", "run_at", "expected_at"
)
INSERT INTO "perfectqueue_ticket" ({ticket_columns}, "token")
SELECT "id", %(lane)s, CASE WHEN %(run_at)s::text IS NULL THEN 0 ELSE 1 END, 0 - %(priority)s,
    COALESCE("expected_at", "run_at"), CASE WHEN %(run_at)s::text IS NOT NULL THEN "run_at" END,
    0, 0, 0, false, NULL, %(token)s
FROM "stored" RETURNING set_config('perfectqueue.stored', %(token)s || ':' || "task_id", false)
"""
STORE = STORE.replace("{task_columns}", TASK_COLUMNS).replace("{ticket_columns}", TICKET_COLUMNS)
for name in TIMES:
    STORE = STORE.replace(f"{{{name}}}", TIME.replace("{name}", name))

# psycopg2 returns only what the last statement does, so the id goes there by a setting.
KEPT = "split_part(current_setting('perfectqueue.stored', true), ':', {part})"
# It comes after the commit: who puts a lane to sleep looks for tasks first, so one of both sees
# the other. And NOTIFY within the first transaction would let commits go only one by one.
NOTIFY_IF_AWAKE = f"""
SELECT {KEPT.format(part=2)}::bigint, (
    SELECT pg_notify('{CHANNEL}', %(message)s)::text
    WHERE %(message)s <> '' AND (%(run_at)s::text IS NOT NULL OR EXISTS ({AWAKE}))
) IS NOT NULL
WHERE {KEPT.format(part=1)} = %(token)s::text
"""
NAMED = re.compile(r"%\((\w+)\)s")


def prepared(statement: str) -> tuple[str, str]:
    """
    Return what prepares a statement, and what executes it.

    The name is a hash of the text, so equal names are equal statements.
    """
    names = list(dict.fromkeys(NAMED.findall(statement)))
    sql = NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", statement)
    name = f"perfectqueue_{hashlib.blake2b(sql.encode(), digest_size=8).hexdigest()}"
    return (
        f"PREPARE {name} ({', '.join(KINDS[each] for each in names)}) AS {sql}",
        f"EXECUTE {name} ({', '.join(f'%({each})s' for each in names)})",
    )


(PREPARE_STORE, EXECUTE_STORE), (PREPARE_LOOK, EXECUTE_LOOK) = map(
    prepared, (STORE, NOTIFY_IF_AWAKE)
)
# Planning costs the server more than the rest, and preparing as much as planning once: so a
# connection that submits once prepares nothing.
PLAIN = f"BEGIN; {STORE}; COMMIT; {NOTIFY_IF_AWAKE}"
PREPARING = f"BEGIN; {PREPARE_STORE}; {EXECUTE_STORE}; COMMIT; {PREPARE_LOOK}; {EXECUTE_LOOK}"
EXECUTING = f"BEGIN; {EXECUTE_STORE}; COMMIT; {EXECUTE_LOOK}"
PACKETS = (PLAIN, PREPARING, EXECUTING)

# What libpq calls a connection whose statement still runs.
ACTIVE = 1

# By connection which of the packets is next; None where a pooler has lost what was prepared.
sends: WeakKeyDictionary[object, int | None] = WeakKeyDictionary()


class PostgreSQLAlone(postgresql_server.PostgreSQLErrors):
    def submits_alone(self, connection: BaseDatabaseWrapper) -> bool:
        return postgresql_server.takes_several_statements(connection)

    def submit_alone(
        self, cursor: Cursor, task: Submission, *, token: int, message: str
    ) -> tuple[int | None, bool]:
        values = {
            **stored_row(task),
            "lane": task.lane,
            "token": token,
            "message": message,
            **{name: postgresql_server.time_text(getattr(task, name)) for name in TIMES},
        }
        wire = cursor.db.connection
        use = sends.setdefault(wire, 0)
        sends[wire] = None if use is None else min(use + 1, 2)
        try:
            cursor.execute(PACKETS[use or 0], values)
        except BaseException as error:
            if postgresql_server.state_of(error) in postgresql_server.UNPREPARED:
                sends[wire] = None
            roll_back(cursor)
            raise
        # What is read is here, so Django need not watch over each call.
        results = cursor.cursor
        while postgresql_server.is_psycopg3() and results.nextset():
            pass
        return results.fetchone() or (None, False)


def roll_back(cursor: Cursor) -> None:
    """End what a packet has begun; close the connection where it still goes on."""
    status = cursor.connection.info.transaction_status
    if status == ACTIVE:
        cursor.db.close()
    elif status != postgresql_server.IDLE and not cursor.connection.closed:
        cursor.execute("ROLLBACK")
