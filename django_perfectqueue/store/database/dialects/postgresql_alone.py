"""PostgreSQL: a task submitted by itself goes as one packet, which a connection prepares."""

from __future__ import annotations

import hashlib
import re
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper as Cursor

from ...values import CHANNEL, Submission
from .base import AWAKE, TASK_COLUMNS, TICKET_COLUMNS, stored_row
from .postgresql_arrays import time_text
from .postgresql_errors import UNPREPARED, PostgreSQLErrors, state_of
from .postgresql_submit import COLUMNS
from .postgresql_transactions import IDLE, is_psycopg3, takes_several_statements

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

ACTIVE = 1
"""What libpq calls a connection whose statement still runs."""

sends: WeakKeyDictionary[object, int | None] = WeakKeyDictionary()
"""By connection which of the packets is next; None where a pooler has lost what was prepared."""


class PostgreSQLAlone(PostgreSQLErrors):
    def submits_alone(self, connection: BaseDatabaseWrapper) -> bool:
        return takes_several_statements(connection)

    def submit_alone(
        self, cursor: Cursor, task: Submission, *, token: int, message: str
    ) -> tuple[int | None, bool]:
        values = {
            **stored_row(task),
            "lane": task.lane,
            "token": token,
            "message": message,
            **{name: time_text(getattr(task, name)) for name in TIMES},
        }
        wire = cursor.db.connection
        use = sends.setdefault(wire, 0)
        sends[wire] = None if use is None else min(use + 1, 2)
        try:
            cursor.execute(PACKETS[use or 0], values)
        except BaseException as error:
            if state_of(error) in UNPREPARED:
                sends[wire] = None
            roll_back(cursor)
            raise
        # What is read is here, so Django need not watch over each call.
        results = cursor.cursor
        while is_psycopg3() and results.nextset():
            pass
        return results.fetchone() or (None, False)


def roll_back(cursor: Cursor) -> None:
    """End what a packet has begun; close the connection where it still goes on."""
    status = cursor.connection.info.transaction_status
    if status == ACTIVE:
        cursor.db.close()
    elif status != IDLE and not cursor.connection.closed:
        cursor.execute("ROLLBACK")
