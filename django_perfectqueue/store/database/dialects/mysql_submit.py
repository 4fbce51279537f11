"""On MySQL and MariaDB tasks are stored by a statement, and their tickets by another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError
from django.db.backends.utils import CursorWrapper as Cursor

from ...values import Ids, Now, Submission
from .base import INSERT_TICKETS, TASK_COLUMNS, Dialect, stored_row
from .mysql_server import is_taken, takes_several_statements

INSERT_TASKS = f'INSERT INTO "perfectqueue_task" ({TASK_COLUMNS}) VALUES '
TASK = (
    "({queue}, {key}, {type}, {user}, {data}, {priority}, {{now}}, {run_at}, {expected_at},"
    " {expires_at}, {limits}, {time_limit}, {context}, '', 0, '')"
)

FIND_TASKS = """
SELECT "key", "id" FROM "perfectqueue_task"
WHERE "queue" = %(queue)s AND "key" IN %(keys)s
"""

ON_TASK = '"perfectqueue_task" AS "task" ON'
BY_TASK = ON_TASK.replace(" ON", " FORCE INDEX (PRIMARY) ON")
INSERT_TICKETS = INSERT_TICKETS.replace("CROSS JOIN", "STRAIGHT_JOIN").replace(ON_TASK, BY_TASK)

MICROSECONDS = "TIMESTAMPADD(MICROSECOND, ROUND(%({name})s * 1000000), {now})"


class MySQLSubmit(Dialect):
    def submit(self, cursor: Cursor, tasks: Sequence[Submission], now: Now) -> Ids:
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

    def insert_one(self, cursor: Cursor, task: Submission, now: Now) -> Ids:
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
        self, cursor: Cursor, insert: str, parameters: Mapping[str, object], now: Now
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
        rows: list[str] = []
        parameters: dict[str, object] = {}
        for number, task in enumerate(tasks):
            row = stored_row(task)
            marks = dict.fromkeys(row, "NULL")
            for column, value in row.items():
                # The driver writes each parameter by calls of its own.
                if value is None:
                    continue
                name = f"{column}{number}"
                mark = f"%({name})s"
                if isinstance(value, timedelta):
                    mark, value = self.later(mark), value.total_seconds()
                elif isinstance(value, datetime):
                    value = self.parameter(value)
                marks[column], parameters[name] = mark, value
            if task.run_at is None:
                marks["run_at"] = "{now}"
            rows.append(TASK.format(**marks))
        return INSERT_TASKS + ", ".join(rows), parameters

    def find_tasks(self, cursor: Cursor, tasks: Sequence[Submission]) -> Ids:
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
    return INSERT_TICKETS.replace("{given}", given)
