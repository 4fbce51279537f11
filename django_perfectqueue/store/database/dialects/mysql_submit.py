"""On MySQL and MariaDB tasks are stored by a statement, and their tickets by another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError
from django.db.backends.utils import CursorWrapper as Cursor

from ...values import Moment, Submission
from .base import Dialect
from .mysql_errors import is_taken
from .mysql_transactions import takes_several_statements

INSERT_TASK = """
INSERT INTO "perfectqueue_task" (
    "queue", "key", "type", "user", "data", "priority", "created_at", "run_at", "expected_at",
    "expires_at", "limits", "time_limit", "context", "outcome", "attempt", "worker"
) VALUES
"""

FIND_TASKS = """
SELECT "key", "id" FROM "perfectqueue_task"
WHERE "queue" = %(queue)s AND "key" IN %(keys)s
"""

INSERT_TICKET = """
INSERT INTO "perfectqueue_ticket" (
    "task_id", "lane", "state", "rank", "run_at", "timer_at", "attempt", "errors", "crashes",
    "cancel_requested", "followed"
)
SELECT "task"."id", "given"."lane", "given"."state", -"task"."priority",
    COALESCE("task"."expected_at", "task"."run_at"),
    CASE WHEN "given"."state" = 1 THEN "task"."run_at" END, 0, 0, 0, 0, "given"."followed"
FROM ({given}) AS "given"
STRAIGHT_JOIN "perfectqueue_task" AS "task" FORCE INDEX (PRIMARY) ON "task"."id" = "given"."id"
"""

MICROSECONDS = "TIMESTAMPADD(MICROSECOND, ROUND(%({name})s * 1000000), {now})"


class MySQLSubmit(Dialect):
    def submit(
        self, cursor: Cursor, tasks: Sequence[Submission], now: datetime | None
    ) -> dict[tuple[str, str], int]:
        if len(tasks) == 1:
            return self.insert_one(cursor, tasks[0], now)
        taken = self.find_tasks(cursor, tasks)
        free = [task for task in tasks if (task.queue, task.key) not in taken]
        if not free:
            return {}
        insert, parameters = self.insert_of(free)
        try:
            self.execute(cursor, insert, parameters, now=now)
        except IntegrityError as error:
            if not is_taken(error):
                raise
            each = [self.insert_one(cursor, task, now) for task in free]
            return {key: task_id for ids in each for key, task_id in ids.items()}
        fresh = self.find_tasks(cursor, free)
        self.execute(cursor, tickets_of((fresh[task.queue, task.key], task) for task in free))
        return fresh

    def insert_one(
        self, cursor: Cursor, task: Submission, now: datetime | None
    ) -> dict[tuple[str, str], int]:
        """Store a task unless its key is taken; by one round trip where the driver can."""
        insert, parameters = self.insert_of([task])
        ticket = tickets_of([("LAST_INSERT_ID()", task)])
        several = takes_several_statements(cursor.db)
        statement = f"{insert}; {ticket}" if several else insert
        task_id = self.insert_new(cursor, statement, parameters, now)
        if task_id is None:
            return {}
        if several:
            cursor.nextset()
        else:
            self.execute(cursor, ticket)
        return {(task.queue, task.key): task_id}

    def insert_new(
        self, cursor: Cursor, insert: str, parameters: Mapping[str, object], now: datetime | None
    ) -> int | None:
        try:
            self.execute(cursor, insert, parameters, now=now)
        except IntegrityError as error:
            if is_taken(error):
                return None
            raise
        return int(cursor.lastrowid)

    def insert_of(self, tasks: Sequence[Submission]) -> tuple[str, dict[str, object]]:
        """Return the statement that inserts tasks, and its parameters."""
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
        return INSERT_TASK + ", ".join(values), parameters

    def find_tasks(self, cursor: Cursor, tasks: Sequence[Submission]) -> dict[tuple[str, str], int]:
        keys: dict[str, list[str]] = {}
        for task in tasks:
            keys.setdefault(task.queue, []).append(task.key)
        return {
            (queue, key): task_id
            for queue, names in keys.items()
            for key, task_id in self.execute(
                cursor, FIND_TASKS, {"queue": queue, "keys": tuple(names)}
            ).fetchall()
        }


def tickets_of(tickets: Iterable[tuple[int | str, Submission]]) -> str:
    """Return the statement that inserts the tickets of tasks, each with the SQL of its id."""
    given = " UNION ALL ".join(
        f'SELECT {task_id} AS "id", {task.lane} AS "lane", {task.state} AS "state",'
        f' {task.followed or "NULL"} AS "followed"'
        for task_id, task in tickets
    )
    return INSERT_TICKET.replace("{given}", given)
