"""On MySQL and MariaDB a task is stored by two statements; one alone by a single round trip."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import Error, IntegrityError
from django.db.backends.utils import CursorWrapper as Cursor

from ...values import Moment, Submission
from .base import Dialect, Row, naive
from .mysql_errors import is_taken
from .mysql_transactions import (
    BEGIN,
    READ_COMMITTED,
    in_one_packet,
    reads_committed,
)
from .one_task import SPAN, TICKET, Form, Stored, form_of, statements_of, values_of

INSERT_TASK = """
INSERT INTO "perfectqueue_task" (
    "queue", "key", "type", "user", "data", "priority", "created_at", "run_at", "expected_at",
    "expires_at", "limits", "time_limit", "context", "outcome", "attempt", "worker"
) VALUES
"""

FIND_TASKS = """
SELECT "key", "id", "run_at", "expected_at" FROM "perfectqueue_task"
WHERE "queue" = %(queue)s AND "key" IN %(keys)s
"""

INSERT_TICKET = """
INSERT INTO "perfectqueue_ticket" (
    "task_id", "lane", "state", "rank", "run_at", "alarm_at", "attempt", "errors", "crashes",
    "cancel_requested"
) VALUES
"""

END = ("COMMIT",)
END_AND_LOOK = (*END, "SELECT 1 FROM `perfectqueue_lane` WHERE `id` = %(lane)s AND `has_waiting`")
FROM_STORED = 'FROM "perfectqueue_task" WHERE "id" = LAST_INSERT_ID()'
MICROSECONDS = "TIMESTAMPADD(MICROSECOND, ROUND(%({name})s * 1000000), {now})"


class MySQLSubmit(Dialect):
    def submit(
        self, cursor: Cursor, tasks: Sequence[Submission], now: datetime | None
    ) -> dict[tuple[str, str], int]:
        fresh = self.insert_tasks(cursor, tasks, now)
        tickets = [
            (fresh[task.queue, task.key], task) for task in tasks if (task.queue, task.key) in fresh
        ]
        if tickets:
            self.insert_tickets(cursor, tickets)
        return {key: row[0] for key, row in fresh.items()}

    def submit_one(
        self, cursor: Cursor, task: Submission, *, token: int, now: datetime | None
    ) -> Stored:
        try:
            return self.insert_one(cursor, task, token, now)
        except IntegrityError as error:
            if is_taken(error):
                return Stored(None)
            raise

    def submit_alone(
        self, cursor: Cursor, task: Submission, *, token: int, message: str, now: datetime | None
    ) -> Stored:
        begin = BEGIN if reads_committed(cursor.db) else (READ_COMMITTED, *BEGIN)
        end = END_AND_LOOK if task.run_at is None else END
        try:
            return self.insert_one(cursor, task, token, now, begin=begin, end=end)
        except Error as error:
            with contextlib.suppress(Error):
                cursor.execute("ROLLBACK")
            if is_taken(error):
                return Stored(None)
            raise
        except BaseException:
            # Results may be left, which nobody reads.
            cursor.db.close()
            raise

    def insert_one(
        self,
        cursor: Cursor,
        task: Submission,
        token: int,
        now: datetime | None,
        *,
        begin: tuple[str, ...] = (),
        end: tuple[str, ...] = (),
    ) -> Stored:
        """Store a task, between statements that begin and end a transaction."""
        form = form_of(task)
        clock = self.clock if now is None else self.given_clock
        inserts = one_task(form, clock)
        values = values_of(task, form, token, now, given)
        statements = [*begin, *inserts, *end]
        # Each error becomes one of Django's, but not each result is looked at by it.
        with cursor.db.wrap_database_errors:
            results = in_one_packet(cursor, statements, values)
            for _ in range(len(begin) + 1):
                next(results)
            task_id = int(cursor.cursor.lastrowid)
            for _ in results:
                pass
            return Stored(task_id, bool(end is END_AND_LOOK and cursor.cursor.fetchone()))

    def insert_tasks(
        self, cursor: Cursor, tasks: Sequence[Submission], now: datetime | None
    ) -> dict[tuple[str, str], Row]:
        """Store the tasks whose key is free; return each one's id and times."""
        if len(tasks) > 1:
            taken = self.find_tasks(cursor, tasks)
            tasks = [task for task in tasks if (task.queue, task.key) not in taken]
        if not tasks:
            return {}
        try:
            self.insert_all(cursor, tasks, now)
        except IntegrityError as error:
            if not is_taken(error):
                raise
            if len(tasks) == 1:
                return {}
            each = [self.insert_tasks(cursor, [task], now) for task in tasks]
            return {key: row for rows in each for key, row in rows.items()}
        return self.find_tasks(cursor, tasks)

    def insert_all(self, cursor: Cursor, tasks: Sequence[Submission], now: datetime | None) -> None:
        values: list[str] = []
        parameters: dict[str, object] = {}
        for number, task in enumerate(tasks):
            columns: dict[str, Moment | str | float | None] = {
                "q": task.queue,
                "k": task.key,
                "t": task.type,
                "u": task.user,
                "d": task.payload,
                "p": task.priority,
                "r": task.run_at,
                "e": task.expected_at,
                "x": task.expires_at,
                "l": ",".join(task.limits),
                "s": task.time_limit,
                "c": task.context,
            }
            marks = []
            for letter, value in columns.items():
                name = f"{letter}{number}"
                mark = "NULL" if value is None else f"%({name})s"
                if isinstance(value, timedelta):
                    mark, parameters[name] = self.later(mark), value.total_seconds()
                elif value is not None:
                    parameters[name] = (
                        self.parameter(value) if isinstance(value, datetime) else value
                    )
                marks.append(mark)
            q, k, t, u, d, p, r, *others = marks
            run_at = "{now}" if task.run_at is None else r
            values.append(
                f"({q}, {k}, {t}, {u}, {d}, {p}, {{now}}, {run_at}, {', '.join(others)}, '', 0, '')"
            )
        self.execute(cursor, INSERT_TASK + ", ".join(values), parameters, now=now)

    def find_tasks(self, cursor: Cursor, tasks: Sequence[Submission]) -> dict[tuple[str, str], Row]:
        keys: dict[str, list[str]] = {}
        for task in tasks:
            keys.setdefault(task.queue, []).append(task.key)
        return {
            (queue, key): tuple(row)
            for queue, names in keys.items()
            for key, *row in self.execute(
                cursor, FIND_TASKS, {"queue": queue, "keys": tuple(names)}
            ).fetchall()
        }

    def insert_tickets(self, cursor: Cursor, tickets: Sequence[tuple[Row, Submission]]) -> None:
        values: list[str] = []
        parameters: dict[str, object] = {}
        for number, (row, task) in enumerate(tickets):
            task_id, run_at, expected_at = row
            scheduled = task.run_at is not None
            parameters[f"r{number}"] = str(expected_at or run_at)
            parameters[f"a{number}"] = str(run_at) if scheduled else None
            values.append(
                f"({task_id}, {task.lane}, {int(scheduled)}, {-task.priority}, %(r{number})s,"
                f" %(a{number})s, 0, 0, 0, 0)"
            )
        self.execute(cursor, INSERT_TICKET + ", ".join(values), parameters)


@functools.cache
def one_task(form: Form, clock: str) -> tuple[str, ...]:
    """Return the statements that store a task of this form, and its ticket."""
    task, columns, values = statements_of(form, column_sql)
    if "run_at" in columns or "expected_at" in columns:
        expected = '"expected_at"' if "expected_at" in columns else '"run_at"'
        alarm = '"run_at"' if "run_at" in columns else "NULL"
        ticket = f'{TICKET} SELECT "id", {values}, {expected}, {alarm} {FROM_STORED}'
    else:
        ticket = f"{TICKET} VALUES (LAST_INSERT_ID(), {values}, {{now}}, NULL)"
    return tuple(sql.replace("{now}", clock).replace('"', "`") for sql in (task, ticket))


def column_sql(name: str) -> str:
    """Return the SQL of an optional column of a task, by its name in the form."""
    if name.startswith(SPAN):
        return MICROSECONDS.replace("{name}", name.removeprefix(SPAN))
    return f"%({name})s"


def given(value: Moment) -> str | float:
    """Return a time, or the seconds of a span, as the driver takes it."""
    return value.total_seconds() if isinstance(value, timedelta) else str(naive(value))
