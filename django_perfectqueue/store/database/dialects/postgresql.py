"""
PostgreSQL: each verb is one statement, and arrays carry the batch.

Rows are reached by ``= ANY(ARRAY(SELECT ...))``: the planner takes such an array to be
short, and goes by the primary key however small or large the table.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from django.db import DatabaseError, InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue.models.fields import READABLE

from ...values import CHANNEL, ENDED, Completion, Moment, Submission
from ..diagnosis import Ailment
from .base import HAS_COPIES, Dialect, Entry, Report, Waking, average
from .one_task import SPAN, TICKET, Form, Stored, form_of, statements_of, values_of
from .prepared import Packet, prepare_no_more, prepared, text_of

SERIALIZATION_FAILURE = "40001"
DEADLOCK_DETECTED = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
ACTIVE, IN_TRANSACTION = 1, (2, 3)
"""What libpq says of a connection; 3 is a transaction that has failed."""

UNPREPARED = {
    "26000",  # invalid_sql_statement_name: a pooler has changed the server's connection
    "42P05",  # duplicate_prepared_statement: another client has prepared it there
}
PASSES = {SERIALIZATION_FAILURE, DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, *UNPREPARED}

# The whole class 08 is lost, too.
LOST = {
    "25006",  # read_only_sql_transaction: the server has become a standby
    "25P03",  # idle_in_transaction_session_timeout
    "40003",  # statement_completion_unknown
    "53300",  # too_many_connections
    "57P01",  # admin_shutdown, and pg_terminate_backend()
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now: it starts, stops or recovers
    "57P05",  # idle_session_timeout
}
# A driver that can't connect gives no code.
REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password")

AILMENTS = {
    "25006": Ailment.READ_ONLY,
    "28000": Ailment.SHUT_OUT,
    "28P01": Ailment.SHUT_OUT,
    "3D000": Ailment.SHUT_OUT,
    "3F000": Ailment.UNMIGRATED,
    "40001": Ailment.LOCKED,
    "40P01": Ailment.LOCKED,
    "42501": Ailment.FORBIDDEN,
    "42703": Ailment.UNMIGRATED,
    "42P01": Ailment.UNMIGRATED,
    "53100": Ailment.FULL,
    "53300": Ailment.CROWDED,
    "55P03": Ailment.LOCKED,
    "57014": Ailment.CUT_SHORT,
    "57P01": Ailment.STOPPED,
    "57P02": Ailment.STOPPED,
    "57P03": Ailment.STOPPED,
}
# Where another language is set, these are not found, and the error itself decides.
SAID = {
    "starting up": Ailment.STOPPED,
    "shutting down": Ailment.STOPPED,
    "recovery": Ailment.STOPPED,
    "too many": Ailment.CROWDED,
    "connection slots": Ailment.CROWDED,
    **dict.fromkeys((*REFUSED, "not permitted"), Ailment.SHUT_OUT),
}

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

TELL = f"pg_notify('{ENDED}' || \"task_id\", '')"

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
    RETURNING "ticket"."task_id", "ticket"."token", "ticket"."watched", "ticket"."followed"
),
"ended" AS (
    UPDATE "perfectqueue_task" AS "task"
    SET "outcome" = 'finished', "attempt" = "given"."attempt", "worker" = %(worker)s,
        "started_at" = {{now}} - "given"."started" * interval '1 second',
        "ended_at" = {{now}} - "given"."ended" * interval '1 second',
        "result" = "given"."result"
    FROM "given"
    WHERE "task"."id" = ANY(ARRAY(SELECT "task_id" FROM "closed")) AND "task"."id" = "given"."id"
        AND ("given"."id", "given"."token") IN (SELECT "task_id", "token" FROM "closed")
    RETURNING "task"."id", "given"."token"
)
SELECT "id", "token", NULL::bigint, (SELECT count({TELL}) FROM "closed" WHERE "watched")
FROM "ended"
UNION ALL
SELECT "task_id", "token", "followed", 0 FROM "closed" WHERE "followed" IS NOT NULL
"""

FINISH_ONE = f"""
WITH "closed" AS (
    DELETE FROM "perfectqueue_ticket"
    WHERE "task_id" = %(id)s AND "token" = %(token)s AND "state" = 2 AND "followed" IS NULL
    RETURNING "task_id", "lane", "watched"
),
"charged" AS (
    UPDATE "perfectqueue_lane"
    SET "running" = "running" + %(running)s,
        "virtual_time" = "virtual_time" + %(seconds)s / "weight",
        "cost" = {average('"cost"', mean="%(mean)s", keep="%(keep)s")},
        "finish_tag" = GREATEST("finish_tag", %(finish_tag)s)
    WHERE "id" = (SELECT "lane" FROM "closed")
    RETURNING "id", "virtual_time", "cost", "running"
),
"copied" AS (
    UPDATE "perfectqueue_lane" AS "lane"
    SET "virtual_time" = "charged"."virtual_time", "cost" = "charged"."cost",
        "running" = "charged"."running"
    FROM "charged"
    WHERE "lane"."account" = "charged"."id" AND NOT ("lane"."gate" = 0)
)
UPDATE "perfectqueue_task"
SET "outcome" = 'finished', "attempt" = %(attempt)s, "worker" = %(worker)s,
    "started_at" = {{now}} - %(started)s * interval '1 second',
    "ended_at" = {{now}} - %(ended)s * interval '1 second',
    "result" = %(result)s
WHERE "id" = (SELECT "task_id" FROM "closed")
RETURNING "id", (SELECT count({TELL}) FROM "closed" WHERE "watched")
"""

REMOVE = f"""
DELETE FROM "perfectqueue_ticket" WHERE "task_id" = %(task_id)s
RETURNING "followed", CASE WHEN "watched" THEN {TELL} END
"""

CHARGE = f"""
WITH "entry" AS (
    SELECT * FROM unnest(
        %(lane)s::bigint[], %(running)s::int[], %(seconds)s::float8[], %(mean)s::float8[],
        %(keep)s::float8[], %(served)s::boolean[], %(finish_tag)s::float8[]
    ) AS "entry" ("lane", "running", "seconds", "mean", "keep", "served", "finish_tag")
),
"locked" AS (
    SELECT "lane"."id" FROM "perfectqueue_lane" AS "lane"
    WHERE "lane"."id" = ANY(ARRAY(SELECT "lane" FROM "entry"))
    ORDER BY "lane"."id" FOR UPDATE
)
UPDATE "perfectqueue_lane" AS "lane"
SET "running" = "lane"."running" + "entry"."running",
    "virtual_time" = "lane"."virtual_time" + "entry"."seconds" / "lane"."weight",
    "cost" = {average('"lane"."cost"', mean='"entry"."mean"', keep='"entry"."keep"')},
    "since" = CASE WHEN "entry"."served" THEN {{now}} ELSE "lane"."since" END,
    "finish_tag" = GREATEST("lane"."finish_tag", "entry"."finish_tag")
FROM "entry"
WHERE "lane"."id" = ANY(ARRAY(SELECT "id" FROM "locked")) AND "lane"."id" = "entry"."lane"
RETURNING "lane"."id", {HAS_COPIES.replace("{lane}", '"lane"."id"')}
"""

WAKE = """
INSERT INTO "perfectqueue_lane" AS "lane" (
    "id", "account", "gate", "keys", "queue", "user", "virtual_time", "cost", "weight",
    "max_running", "paused", "policy", "running", "has_waiting", "since"
)
SELECT "given"."lane", "given"."account", "given"."gate", "given"."keys", "given"."queue",
    "given"."user", "given"."virtual_time", "given"."cost", "given"."weight", "given"."max_running",
    "given"."paused", "given"."policy", 0, "given"."has_waiting", COALESCE("given"."since", {now})
FROM unnest(
    %(lane)s::bigint[], %(account)s::bigint[], %(gate)s::bigint[], %(keys)s::text[],
    %(queue)s::text[], %(user)s::text[], %(virtual_time)s::float8[], %(cost)s::float8[],
    %(weight)s::float8[], %(max_running)s::int[], %(paused)s::boolean[], %(policy)s::smallint[],
    %(has_waiting)s::boolean[], %(since)s::timestamptz[]
) AS "given" (
    "lane", "account", "gate", "keys", "queue", "user", "virtual_time", "cost", "weight",
    "max_running", "paused", "policy", "has_waiting", "since"
){once}
ON CONFLICT ("id") DO UPDATE
SET "has_waiting" = "lane"."has_waiting" OR excluded."has_waiting", "policy" = excluded."policy",
    "since" = CASE WHEN "lane"."has_waiting" THEN "lane"."since" ELSE excluded."since" END,
    "virtual_time" = CASE
        WHEN "lane"."policy" <> excluded."policy" THEN excluded."virtual_time"
        ELSE GREATEST("lane"."virtual_time", excluded."virtual_time")
    END
WHERE NOT "lane"."has_waiting" OR "lane"."policy" <> excluded."policy"
"""


TEXTS = ("keys", "queue", "user")
ASYNCHRONOUS = "\nWHERE (SELECT set_config('synchronous_commit', 'off', true)) = 'off'"

END_IDLE_TRANSACTIONS = """
SELECT set_config('idle_in_transaction_session_timeout', %s, false)
WHERE current_setting('idle_in_transaction_session_timeout') = '0'
"""
LET_STAND = """
SELECT current_setting('idle_in_transaction_session_timeout'),
    set_config('idle_in_transaction_session_timeout', %s, true)
"""
LET_STAND_AS_BEFORE = "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"


levels: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""By connection its level of isolation, as the server has said."""


class PostgreSQL(Dialect):
    notifies = True
    single_statement = True
    clock = "statement_timestamp()"
    given_clock = "%(now)s::timestamptz"
    asynchronous_commit = ", (SELECT set_config('synchronous_commit', 'off', true))"

    def see_commits(self, cursor: Cursor) -> None:
        wire = cursor.db.connection
        if wire not in levels:
            cursor.execute("SHOW transaction_isolation")
            levels[wire] = cursor.fetchone()[0]
        if levels[wire] != "read committed":
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def change_clause(self) -> str:
        return " FOR NO KEY UPDATE"

    def keep_clause(self) -> str:
        return " FOR KEY SHARE"

    def skip_changed_clause(self) -> str:
        return " FOR NO KEY UPDATE SKIP LOCKED"

    def commit_durably(self, cursor: Cursor) -> None:
        self.execute(cursor, "SET LOCAL synchronous_commit TO DEFAULT")

    def end_idle_transactions(self, cursor: Cursor, seconds: float) -> None:
        cursor.execute(END_IDLE_TRANSACTIONS, [str(math.ceil(seconds * 1000))])

    def let_stand(self, cursor: Cursor, seconds: float | None) -> str | None:
        cursor.execute(LET_STAND, [str(math.ceil((seconds or 0) * 1000))])
        before, _now = cursor.fetchone()
        return None if before == "0" else before

    def let_stand_as_before(self, cursor: Cursor, patience: str) -> None:
        cursor.execute(LET_STAND_AS_BEFORE, [patience])

    def later(self, seconds: str) -> str:
        return f"{{now}} + {seconds} * interval '1 second'"

    def readable(self, time: str) -> str:
        return READABLE["postgresql"].replace("{time}", time)

    def passes(self, error: Exception) -> bool:
        return state_of(error) in PASSES

    def lost(self, error: Exception) -> bool:
        state = state_of(error)
        if state is not None:
            return state in LOST or state.startswith("08")
        if type(error) not in (DatabaseError, InterfaceError, OperationalError):
            return False
        return not any(words in str(error) for words in REFUSED)

    def ailment(self, error: Exception) -> Ailment:
        if (state := state_of(error)) is not None:
            otherwise = Ailment.UNREACHABLE if self.lost(error) else Ailment.OTHER
            return AILMENTS.get(state, otherwise)
        if said := [ailment for words, ailment in SAID.items() if words in str(error)]:
            return said[0]
        return Ailment.UNREACHABLE if self.lost(error) else Ailment.OTHER

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

    def finish(
        self, cursor: Cursor, completions: Sequence[Completion], report: Report
    ) -> dict[tuple[int, int], int | None]:
        worker, monotonic, now = report
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
        closed: dict[tuple[int, int], int | None] = dict.fromkeys(
            (task_id, token) for task_id, token, followed, _told in rows if not followed
        )
        for task_id, token, followed, _told in rows:
            if followed and (task_id, token) in closed:
                closed[task_id, token] = followed
        return closed

    def finish_one(self, cursor: Cursor, done: Completion, entry: Entry, report: Report) -> bool:
        worker, monotonic, now = report
        parameters = {
            "id": done.lease.task_id,
            "token": done.lease.token,
            "attempt": done.lease.attempt,
            "started": monotonic - done.started,
            "ended": monotonic - done.ended,
            "result": done.result,
            "worker": worker,
            "running": entry.running,
            "seconds": entry.seconds,
            "mean": entry.mean,
            "keep": entry.keep,
            "finish_tag": entry.finish_tag,
        }
        return self.execute(cursor, FINISH_ONE, parameters, now=now).fetchone() is not None

    def remove(self, cursor: Cursor, task_id: int) -> int | None:
        row = self.execute(cursor, REMOVE, {"task_id": task_id}).fetchone()
        return row[0] if row else None

    def charge(
        self, cursor: Cursor, entries: Sequence[Entry], now: datetime | None
    ) -> Sequence[int] | None:
        columns = zip(Entry._fields, zip(*entries, strict=True), strict=True)
        values = {column: array(given) for column, given in columns}
        rows = self.execute(cursor, CHARGE, values, now=now).fetchall()
        return [lane for lane, copied in rows if copied]

    def wake(self, cursor: Cursor, lanes: Sequence[Waking], now: datetime | None) -> None:
        columns = zip(Waking._fields, zip(*lanes, strict=True), strict=True)
        values = {column: (texts if column in TEXTS else array)(given) for column, given in columns}
        values["since"] = array([time_of(lane.since) for lane in lanes])
        # A crash may forget it where it is a transaction by itself: the sweep wakes them then.
        statement = WAKE.replace("{once}", ASYNCHRONOUS if cursor.db.autocommit else "")
        self.execute(cursor, statement, values, now=now)


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


def array(values: Iterable[object]) -> str:
    """
    Return values that need no quotes as PostgreSQL's text of an array.

    One text costs the driver and the server a tenth of a list of parameters.
    """
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def texts(values: Iterable[str | None]) -> str:
    """Return texts as PostgreSQL's text of an array, each in quotes."""
    items = [
        "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for text in values
    ]
    return f"{{{','.join(items)}}}"


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


def time_of(moment: Moment | None) -> str | None:
    """Return a time as an item of an array; a span as its seconds behind a plus."""
    if isinstance(moment, timedelta):
        return f'"+{moment.total_seconds()}"'
    return None if moment is None else f'"{moment.isoformat()}"'


def time_sql(name: str) -> str:
    """Return the SQL of an optional column of a task, by its name in the form."""
    if name in ("time_limit", "context"):
        return f"%({name})s"
    if name.startswith(SPAN):
        return f"{{now}} + %({name.removeprefix(SPAN)})s::interval"
    return f"%({name})s::timestamptz"


def state_of(error: BaseException) -> str | None:
    """Return the code of an error, as both drivers keep it, if the server sent one."""
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
