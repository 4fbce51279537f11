"""On PostgreSQL one statement stores tasks, whose columns are arrays."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.backends.utils import CursorWrapper as Cursor

from ...values import Submission
from .base import TASK_COLUMNS, TICKET_COLUMNS, Dialect
from .postgresql_arrays import array, texts, time_of

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
        return sql, array(map(time_of, values))
    items = map(",".join, values) if name == "limits" else values
    return f"%({name})s::{kind}[]", (texts if kind == "text" else array)(items)
