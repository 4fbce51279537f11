"""On PostgreSQL one statement stores tasks: of a batch as arrays, of one as prepared."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper as Cursor

from ...values import CHANNEL, Moment, Submission
from .base import Dialect
from .one_task import SPAN, TICKET, Form, Stored, form_of, statements_of, values_of
from .postgresql_arrays import array, texts, time_of
from .postgresql_errors import UNPREPARED, state_of
from .prepared import Packet, prepare_no_more, prepared, text_of

ACTIVE, IN_TRANSACTION = 1, (2, 3)
"""What libpq says of a connection; 3 is a transaction that has failed."""

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
    INSERT INTO "perfectqueue_task" (
        "id", "queue", "key", "type", "user", "data", "priority", "created_at", "run_at",
        "expected_at", "expires_at", "limits", "time_limit", "context", "outcome",
        "attempt", "worker"
    )
    SELECT "id", "queue", "key", "type", "user", "data", "priority", "now",
        COALESCE("run_at", "now"), "expected_at", "expires_at", "limits", "time_limit",
        "context", '', 0, ''
    FROM "given" {returned}
),
"ticket" AS (
    INSERT INTO "perfectqueue_ticket" (
        "task_id", "lane", "state", "rank", "run_at", "alarm_at", "attempt", "errors",
        "crashes", "cancel_requested"
    )
    SELECT "id", "lane", CASE WHEN "run_at" IS NULL THEN 0 ELSE 1 END, -"priority",
        COALESCE("expected_at", "run_at", "now"), "run_at", 0, 0, 0, false
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
}
KINDS = COLUMNS | {"rank": "int", "token": "bigint", "message": "text", "now": "timestamptz"}

SUBMIT_IF_FREE = SUBMIT.replace("{returned}", IF_FREE).replace("{kept}", BUT_TAKEN)
SUBMIT_ALL = SUBMIT.replace("{returned}", "").replace("{kept}", "")

TIMES_AND_SPANS = """ARRAY(
    SELECT CASE
        WHEN left("at", 1) = '+' THEN {now} + substr("at", 2)::float8 * interval '1 second'
        ELSE "at"::timestamptz
    END
    FROM unnest(%({name})s::text[]) WITH ORDINALITY AS "time" ("at", "place") ORDER BY "place"
)"""

ONE_TASK = """
WITH "stored" AS ({task} ON CONFLICT ("queue", "key") DO NOTHING RETURNING "id", "run_at")
{ticket} SELECT "id", {values}, {expected_at}, {alarm_at} FROM "stored" RETURNING {returned}
"""
ID = '"task_id"'
# psycopg2 returns only what the last statement does, so the id goes there by a setting.
KEEP_ID = "set_config('perfectqueue.stored', %(token)s || ':' || \"task_id\", false)"
KEPT = "split_part(current_setting('perfectqueue.stored', true), ':', {part})"
AND_LOOK = f"""
SELECT {KEPT.format(part=2)}::bigint, ({{seen}}) IS NOT NULL
WHERE {KEPT.format(part=1)} = %(token)s::text
"""
NOTIFY = f"SELECT pg_notify('{CHANNEL}', %(message)s)::text"
IF_AWAKE = 'FROM "perfectqueue_lane" WHERE "id" = %(lane)s AND "has_waiting"'


class PostgreSQLSubmit(Dialect):
    def submit(
        self, cursor: Cursor, tasks: Sequence[Submission], now: datetime | None
    ) -> dict[tuple[str, str], int]:
        return self.insert(cursor, SUBMIT_IF_FREE, tasks, now)

    def submit_free(
        self, cursor: Cursor, tasks: Sequence[Submission], now: datetime | None
    ) -> dict[tuple[str, str], int]:
        return self.insert(cursor, SUBMIT_ALL, tasks, now)

    def insert(
        self, cursor: Cursor, statement: str, tasks: Sequence[Submission], now: datetime | None
    ) -> dict[tuple[str, str], int]:
        """Store tasks; a column that is the same in all is sent once."""
        fields = dict(zip(Submission._fields, zip(*tasks, strict=True), strict=True))
        fields["data"] = fields["payload"]
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

    def submit_one(
        self, cursor: Cursor, task: Submission, *, token: int, now: datetime | None
    ) -> Stored:
        form = form_of(task)
        statement = one_task(form, self.clock if now is None else self.given_clock, ID)
        cursor.execute(statement, values_of(task, form, token, now, given))
        row = cursor.fetchone()
        return Stored(row and row[0])

    def submit_alone(
        self, cursor: Cursor, task: Submission, *, token: int, message: str, now: datetime | None
    ) -> Stored:
        is_due = task.run_at is None
        if not (is_due or message) or binds_on_server(cursor.db):
            return self.submit_one(cursor, task, token=token, now=now)
        form = form_of(task)
        packet = packet_of(
            form, self.clock if now is None else self.given_clock, bool(message), is_due
        )
        values = values_of(task, form, token, now, given) | {"message": message}
        wire = cursor.db.connection
        try:
            cursor.execute(text_of(packet, wire), values)
        except BaseException as error:
            if state_of(error) in UNPREPARED:
                prepare_no_more(wire)
            roll_back(cursor)
            raise
        # What is read is here, so Django need not watch over each call.
        results = cursor.cursor
        while is_psycopg3() and results.nextset():
            pass
        task_id, is_seen = results.fetchone() or (None, False)
        return Stored(task_id, is_seen and is_due, is_seen and bool(message))


@functools.cache
def one_task(form: Form, clock: str, returned: str) -> str:
    """Return the statement that stores a task of this form, and its ticket."""
    task, columns, values = statements_of(form, time_sql)
    parts = {
        "{task}": task,
        "{ticket}": TICKET,
        "{values}": values,
        "{returned}": returned,
        "{expected_at}": columns.get("expected_at", '"run_at"'),
        "{alarm_at}": '"run_at"' if "run_at" in columns else "NULL",
    }
    statement = ONE_TASK
    for mark, sql in parts.items():
        statement = statement.replace(mark, sql)
    return statement.replace("{now}", clock)


@functools.cache
def packet_of(form: Form, clock: str, message: bool, is_due: bool) -> Packet:
    """Return what stores a task in a transaction, and then looks and notifies."""
    store = one_task(form, clock, KEEP_ID)
    seen = f"{NOTIFY if message else 'SELECT 1'} {IF_AWAKE if is_due else ''}"
    look = AND_LOOK.replace("{seen}", seen)
    spans = {name.removeprefix(SPAN): "interval" for name in form if name.startswith(SPAN)}
    kinds = tuple((KINDS | spans).items())
    (prepare, execute), (prepare_look, execute_look) = prepared(store, kinds), prepared(look, kinds)
    # NOTIFY within the first transaction would let commits go only one by one.
    return Packet(
        f"BEGIN; {store}; COMMIT; {look}",
        f"BEGIN; {prepare}; {execute}; COMMIT; {prepare_look}; {execute_look}",
        f"BEGIN; {execute}; COMMIT; {execute_look}",
    )


def given(value: Moment) -> datetime | str:
    """Return a time as the driver takes it, and a span as a text."""
    return f"{value.total_seconds()} seconds" if isinstance(value, timedelta) else value


@functools.cache
def is_psycopg3() -> bool:
    # Imported on use: a project on another database may have no driver for this one.
    from django.db.backends.postgresql import psycopg_any

    return bool(psycopg_any.is_psycopg3)


def binds_on_server(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a connection takes only one statement at once."""
    return is_psycopg3() and connection.settings_dict["OPTIONS"].get("server_side_binding", False)


def roll_back(cursor: Cursor) -> None:
    """End what a packet has begun; close the connection where it still goes on."""
    status = cursor.connection.info.transaction_status
    if status in IN_TRANSACTION:
        cursor.execute("ROLLBACK")
    elif status == ACTIVE:
        cursor.db.close()


def same(name: str, kind: str, value: Any) -> tuple[str, object]:
    """Return the SQL and the parameter of a column that has one value in all tasks."""
    if isinstance(value, timedelta):
        return f'"now" + %({name})s::interval', given(value)
    return f"%({name})s::{kind}", ",".join(value) if name == "limits" else value


def listed(name: str, kind: str, values: Sequence[Any]) -> tuple[str, str]:
    """Return the SQL and the parameter of a column as an array."""
    if kind == "timestamptz":
        spans = any(isinstance(at, timedelta) for at in values)
        sql = TIMES_AND_SPANS.replace("{name}", name) if spans else f"%({name})s::timestamptz[]"
        return sql, array(map(time_of, values))
    items = map(",".join, values) if name == "limits" else values
    return f"%({name})s::{kind}[]", (texts if kind == "text" else array)(items)


def time_sql(name: str) -> str:
    """Return the SQL of an optional column of a task, by its name in the form."""
    if name in ("time_limit", "context"):
        return f"%({name})s"
    if name.startswith(SPAN):
        return f"{{now}} + %({name.removeprefix(SPAN)})s::interval"
    return f"%({name})s::timestamptz"
