"""What the store asks of a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from enum import Enum
from math import inf
from typing import Any, NamedTuple, TypeVar, cast

from django.db import NotSupportedError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper as Cursor

from ...values import Chunk, Completion, Ids, Now, Submission

T = TypeVar("T")

Row = tuple[Any, ...]
# The waiting tickets of an account's plain lane. One that is committed between this statement and
# its commit, by someone who still sees the lane awake, is found by wake_forgotten_lanes().
TICKETS = """
    SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND "ticket"."lane" = "account"."id"
"""
REMOVE = """
DELETE FROM "perfectqueue_ticket" WHERE "task_id" IN ({ids}) RETURNING "task_id", "followed"
"""

# Of a lane, of which a user without limits has the account's id.
AWAKE = """
    SELECT 1 FROM "perfectqueue_account" WHERE "id" = %(lane)s AND "has_waiting"
    UNION ALL SELECT 1 FROM "perfectqueue_lane" WHERE "id" = %(lane)s AND "has_waiting"
"""

TASK_COLUMNS = """
    "queue", "key", "type", "user", "data", "priority", "created_at", "run_at", "expected_at",
    "expires_at", "limits", "time_limit", "context", "outcome", "attempt", "worker"
"""
TICKET_COLUMNS = """
    "task_id", "lane", "state", "rank", "run_at", "timer_at", "attempt", "errors", "crashes",
    "cancel_requested", "followed"
"""
INSERT_TICKETS = f"""
INSERT INTO "perfectqueue_ticket" ({TICKET_COLUMNS})
SELECT "task"."id", "given"."lane", "given"."state", -"task"."priority",
    COALESCE("task"."expected_at", "task"."run_at"),
    CASE WHEN "given"."state" = 1 THEN "task"."run_at" END, 0, 0, 0, FALSE, "given"."followed"
FROM ({{given}}) AS "given"
CROSS JOIN "perfectqueue_task" AS "task" ON "task"."id" = "given"."id"
"""


class Entry(NamedTuple):
    """
    What an account is charged: tasks begun less ended, seconds, and the mean that was measured.

    ``advance`` is what was charged in advance for those begun, less those ended; of the ``lost``
    ones it is not known.
    ``served`` means that some have begun, and ``finish_tag`` how far those that have ended
    bring its virtual time, by what they were charged in advance. ``short`` means that its plain
    lane had less than was wanted: it sleeps where no ticket waits in it.
    """

    account: int
    running: int
    lost: int
    seconds: float
    advance: float
    mean: float
    keep: float
    served: bool
    finish_tag: float
    short: bool


# By the fences of leases whose tickets were closed who follows them, and how many seconds their
# lanes were charged while they ran, as the tickets say.
Closed = dict[tuple[int, int], tuple[int | None, float | None]]


class Dialect(ABC):
    """
    The statements of one database.

    SQL is written with standard double quotes and named parameters. ``{now}`` stands for
    the server's clock, or for the time that the caller gave, ``{hint}`` for ``by_primary_key``.
    """

    # Opens a transaction at READ COMMITTED on a connection that is in none, where that differs.
    begun: Callable[[Any], AbstractContextManager[None]] | None = None

    # Whether notifications are the database's own, and reach every host.
    notifies = False

    removal = REMOVE

    # A hint behind a table: by IN a small one would be read, and each of its rows waited for.
    by_primary_key = ""

    # What has the next SELECT see what is not committed, where keep_clause keeps nothing.
    at_read_uncommitted = ""

    # Whether the time is read on the host, before a statement is sent.
    hosts_clock = False

    # Whether a transaction that may write keeps all others from writing.
    one_writer = False

    # Whether indexes keep what is gone for as long as an older snapshot is open.
    keeps_dead_entries = False

    # Whether it plans a query once for many ids, where a UNION of them is planned for each.
    plans_laterally = False

    # A column that lets the transaction be lost, as a whole, if the server crashes.
    asynchronous_commit = ""

    # The SQL of the time, which may name the parameter ``now``.
    clock = ""

    # The same, but read when a row is: after the locks for which those before it have waited.
    moving_clock = "{now}"

    # The same where the caller has given the time.
    given_clock = ""

    # The quotes around names.
    quote = '"'

    in_lane = '"ticket"."lane" = {lane}'

    lock_clause = " FOR UPDATE"

    # The same for rows of which none is deleted: those that are kept, too.
    change_clause = " FOR UPDATE"

    share_clause = " FOR SHARE"

    # What has a row not deleted, and held up in nothing else, where that can be.
    keep_clause = ""

    skip_clause = " FOR UPDATE SKIP LOCKED"

    # The same for rows of which none is deleted: those that are kept, too.
    skip_changed_clause = " FOR UPDATE SKIP LOCKED"

    # A query of the lanes with waiting tickets; it jumps from lane to lane.
    waiting_lanes = """
    SELECT MIN("lane") AS "lane" FROM "perfectqueue_ticket" WHERE "state" = 0
    UNION ALL
    SELECT (
        SELECT MIN("ticket"."lane") FROM "perfectqueue_ticket" AS "ticket"
        WHERE "ticket"."state" = 0 AND "ticket"."lane" > "line"."lane"
    )
    FROM "line" WHERE "line"."lane" IS NOT NULL
"""

    # A query of the first ``most`` queues that have tasks; it jumps over the rows.
    used_queues = """
    WITH RECURSIVE "names" ("name", "number") AS (
        SELECT MIN("queue"), 1 FROM "perfectqueue_task"
        UNION ALL
        SELECT (
            SELECT MIN("task"."queue") FROM "perfectqueue_task" AS "task"
            WHERE "task"."queue" > "names"."name"
        ), "number" + 1
        FROM "names" WHERE "name" IS NOT NULL AND "number" < %(most)s
    )
    SELECT "name" FROM "names" WHERE "name" IS NOT NULL
"""

    def commit_asynchronously(self, cursor: Cursor) -> None:
        """Let the transaction, which is the store's own, be lost if the server crashes."""
        return

    def later(self, seconds: str) -> str:
        """Return the SQL of ``{now}`` plus so many seconds."""
        raise NotSupportedError("This database's clock is the host's: see after().")

    def passes(self, error: Exception) -> bool:
        """Return whether the same transaction may go well if it is repeated."""
        return self.problem_of(error) is Problem.LOCKED

    def lost(self, error: Exception) -> bool:
        """Return whether the connection is lost, or leads to a server that takes no writes now."""
        return False

    def end_idle_transactions(self, cursor: Cursor, seconds: float) -> None:
        """
        Have the server end a transaction of this connection that stands still for so long,
        and with it the connection; where it can, and the project has set no limit.
        """
        return

    def set_idle_timeout(self, cursor: Cursor, seconds: float | None) -> str | None:
        """
        Let this transaction stand still for so long, or with None for ever; return the statement
        that undoes it, or None where there is nothing to be undone.
        """
        return None

    def reset_idle_timeout(self, cursor: Cursor) -> None:
        """Undo set_idle_timeout() after a rollback, where that has not."""
        return

    @staticmethod
    def filled(
        connection: BaseDatabaseWrapper, starts: Iterable[str]
    ) -> AbstractContextManager[object]:
        """Have the statements of a block go together, where the server takes several at once."""
        return nullcontext()

    def commit_before_disk(self, connection: BaseDatabaseWrapper) -> None:
        """
        Commit, where the server can release the locks before it waits for the disk; the
        connection's commit() has then nothing left to do.
        """
        return

    def too_long(self, cursor: Cursor, text: str) -> str:
        """Say why the server would take no statement with this text, or nothing."""
        return ""

    def problem_of(self, error: Exception) -> Problem:
        """Return what ails the database, by an error."""
        return Problem.OTHER

    @abstractmethod
    def submit(self, cursor: Cursor, tasks: Sequence[Submission], now: Now) -> Ids:
        """Store tasks and their tickets; return the ids of those whose key was free."""

    def submit_free(self, cursor: Cursor, tasks: Sequence[Submission], now: Now) -> Ids:
        """Do what submit() does if all keys are free; else it may raise IntegrityError."""
        return self.submit(cursor, tasks, now)

    def cursor_ahead(self, connection: BaseDatabaseWrapper, tasks: Chunk) -> Any:
        """
        Return a cursor for submit_free() that does not wait for the server, or None where there is
        none. The tasks keep it once it has ``sent`` them; its arrive() waits and commits, its
        arrival() then returns what submit_free() would.
        """
        return None

    def submits_alone(self, connection: BaseDatabaseWrapper) -> bool:
        """Return whether a connection stores one task sooner by submit_alone() than by submit()."""
        return False

    def submit_alone(
        self, cursor: Cursor, task: Submission, *, token: int, message: str
    ) -> tuple[int | None, bool]:
        """
        Store a task, with a token in its ticket, in a transaction of its own; then notify the
        workers by a message, if there is one, and if the task is scheduled or its lane is awake.

        Return its id, or None where its key is taken, and whether they were notified.
        """
        raise NotSupportedError("This database stores one task as it does several.")

    @abstractmethod
    def finish(
        self, cursor: Cursor, completions: Sequence[Completion], worker: str, now: Now
    ) -> Closed:
        """
        Close the tickets that are still held as given, and say that this worker has finished the
        tasks; return what they said.
        """

    def remove(self, cursor: Cursor, ids: Collection[int]) -> dict[int, int]:
        """
        Delete the tickets of tasks that have ended, and notify the programs that wait for the
        end; return who follows each that is followed, as its ticket says.
        """
        statement = self.with_numbers(self.removal, "ids", ids)
        rows = self.execute(cursor, statement).fetchall()
        return {task_id: followed for task_id, followed, *_notified in rows if followed}

    @abstractmethod
    def charge(self, cursor: Cursor, entries: Sequence[Entry], now: Now) -> int | None:
        """
        Write to accounts in the order of their ids; return how many fell asleep, or None where
        the statement does not say it.
        """

    def insert_new(
        self, cursor: Cursor, insert: str, parameters: Mapping[str, object], now: Now
    ) -> int | None:
        """Insert one row; return its id, or None where its unique key is there already."""
        statement = f'{insert} ON CONFLICT DO NOTHING RETURNING "id"'
        row = self.execute(cursor, statement, parameters, now=now).fetchone()
        return int(row[0]) if row else None

    def atomic(self, connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
        """Open a transaction that may read before it writes, or a savepoint of the caller's."""
        return transaction.atomic(connection.alias)

    def own(self, connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
        """
        Open a transaction of the store's own, of which each statement sees what others have
        committed before it, whatever level the connection has.

        On MySQL at REPEATABLE READ a lock finds the newest rows, and a SELECT those of before: so
        a ticket would be taken whose task can't be seen.
        """
        if self.begun and connection.get_autocommit():
            return self.begun(connection)
        return self.atomic(connection)

    def current_clause(self, cursor: Cursor) -> str:
        """
        Return what makes a SELECT see what others have committed by now, in a transaction of
        the caller's that would see what was there when it began to read.
        """
        return ""

    def delete(self, cursor: Cursor, table: str, ids: Collection[int], *, key: str = "id") -> None:
        """Delete rows by their primary keys; no other row is waited for."""
        statement = f'DELETE FROM "{table}" WHERE "{key}" IN ({{ids}})'
        self.execute(cursor, self.with_numbers(statement, "ids", ids))

    def parameter(self, moment: datetime | None) -> datetime | str | None:
        """Return a time as the driver takes it."""
        return moment

    def moment(self, value: datetime) -> datetime:
        """Return a time as the driver gave it, aware."""
        return value

    def execute(
        self,
        cursor: Cursor,
        sql: str,
        parameters: Mapping[str, object] | None = None,
        *,
        now: Now = None,
        after: Mapping[str, float | None] | None = None,
    ) -> Cursor:
        """
        Run one statement; return the cursor.

        ``after`` gives times that the SQL names in braces, as seconds from now.
        """
        given: dict[str, Any] = dict(parameters or {})
        for name, seconds in (after or {}).items():
            expression, given[name] = self.after(name, seconds, now)
            sql = sql.replace(f"{{{name}}}", expression)
        if "{now}" in sql:
            sql = sql.replace("{now}", self.clock if now is None else self.given_clock)
            if now is not None or self.hosts_clock:
                given["now"] = self.parameter(now)
        sql = sql.replace("{hint}", self.by_primary_key)
        cursor.execute(sql if self.quote == '"' else sql.replace('"', self.quote), given)
        return cursor

    def with_list(
        self, sql: str, name: str, values: Iterable[int] | Iterable[str]
    ) -> tuple[str, dict[str, str]]:
        """Return SQL with an IN list: numbers as they are, texts as parameters, with these."""
        items = list(values)
        if items and isinstance(items[0], str):
            texts = {f"{name}_{number}": str(item) for number, item in enumerate(items)}
            return sql.replace(f"{{{name}}}", ", ".join([f"%({each})s" for each in texts])), texts
        return self.with_numbers(sql, name, cast("list[int]", items)), {}

    def with_numbers(self, sql: str, name: str, values: Collection[int]) -> str:
        """Return SQL with these numbers in its IN list."""
        return sql.replace(f"{{{name}}}", numbers(values))

    def after(self, name: str, seconds: float | None, now: Now) -> tuple[str, object]:
        """Return the SQL and the parameter of a time so many seconds from now."""
        return (f"%({name})s" if seconds is None else self.later(f"%({name})s")), seconds

    def deep(self, cursor: Cursor) -> str:
        """Return what has the recursive query behind it stop at no depth."""
        return ""

    def upsert(
        self, table: str, key: Sequence[str], changes: Mapping[str, str], *, where: str = ""
    ) -> str:
        """
        Return what makes an INSERT change the row that has its unique key already.

        ``changes`` are the columns' new values in SQL, where ``{old}`` and ``{new}`` stand
        for the column as it is and as it was to be inserted. They come one after the other
        on MySQL, where a later one sees what the earlier ones have written. ``where`` spares
        a write where the changes leave the row as it is. Without changes the row is left as it is.
        """
        if not changes:
            return "ON CONFLICT DO NOTHING"
        names = ", ".join(f'"{column}"' for column in key)
        values = self.changed(table, changes)
        return f"ON CONFLICT ({names}) DO UPDATE SET {values}" + (where and f" WHERE {where}")

    def changed(self, table: str, changes: Mapping[str, str]) -> str:
        return ", ".join(
            f'"{column}" = '
            + sql.replace("{old}", f'"{table}"."{column}"').replace("{new}", self.inserted(column))
            for column, sql in changes.items()
        )

    def inserted(self, column: str) -> str:
        """Return the SQL of a column as it was to be inserted, for upsert()."""
        return f'excluded."{column}"'

    def by_index(self, name: str) -> str:
        """Return a hint behind a table: as ``by_primary_key``, by another index."""
        return ""


# Of lost tasks about what others of the account were charged goes.
LEFT = (
    '"account"."advance" * CASE WHEN "account"."running" > "given"."lost"'
    ' THEN 1.0 - 1.0 * "given"."lost" / "account"."running" ELSE 0.0 END + "given"."advance"'
)
# What a charge makes of an account, by the entry that is ``given``. On MySQL the later ones see
# what the earlier ones have written.
CHARGED = {
    # What the sums of rounded numbers are off by does not outlive the tasks.
    "advance": f"""CASE WHEN "account"."running" + "given"."running" <= 0 OR {LEFT} < 0.0 THEN 0.0
        ELSE {LEFT} END""",
    "running": '"account"."running" + "given"."running"',
    "virtual_time": '"account"."virtual_time" + "given"."seconds" / "account"."weight"',
    # A moving mean, of which ``keep`` is how much of the known one stays. The first measure takes
    # the place of what an unmeasured one was given.
    "cost": """CASE
        WHEN "account"."cost" < 0 AND "given"."keep" < 1 THEN "given"."mean"
        ELSE "account"."cost" * "given"."keep" + "given"."mean" * (1 - "given"."keep") END""",
    "since": """CASE
        WHEN "given"."served" OR "given"."short" THEN {now} ELSE "account"."since" END""",
    "finish_tag": """CASE
        WHEN "account"."finish_tag" < "given"."finish_tag" THEN "given"."finish_tag"
        ELSE "account"."finish_tag" END""",
}
CHARGES = f"""
{", ".join([f'"{column}" = {sql}' for column, sql in CHARGED.items()])},
"has_waiting" = "account"."has_waiting" AND NOT ("given"."short" AND NOT EXISTS ({TICKETS}))
"""


def stored_row(task: Submission) -> dict[str, Any]:
    """Return what a submit says of TASK_COLUMNS, in their order."""
    return {
        "queue": task.queue,
        "key": task.key,
        "type": task.type,
        "user": task.user,
        "data": task.payload,
        "priority": task.priority,
        "run_at": task.run_at,
        "expected_at": task.expected_at,
        "expires_at": task.expires_at,
        "limits": ",".join(task.limits),
        "time_limit": task.time_limit,
        "context": task.context,
    }


def naive(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc).replace(tzinfo=None)


def numbers(values: Iterable[int]) -> str:
    """Return whole numbers as the inside of an IN list."""
    return ", ".join([str(int(value)) for value in values]) or "NULL"


def cases(values: Iterable[tuple[int, float]]) -> str:
    """Return numbers by others, such as ids, as the inside of a CASE."""
    return " ".join([f"WHEN {int(key)} THEN {value!r}" for key, value in values])


def in_parts(
    items: Iterable[T], sizes: Iterable[int], most: int, count: float = inf
) -> Iterator[list[T]]:
    """Yield items in lists of so many, none larger than the most but for an item that is."""
    part: list[T] = []
    total = 0
    for item, own in zip(items, sizes, strict=True):
        if part and (len(part) == count or total + own > most):
            yield part
            part, total = [], 0
        part.append(item)
        total += own
    if part:
        yield part


# What may ail a database.


class Problem(Enum):
    """
    Why a database does not do what it is asked, in words that end a sentence.

    ``passes`` is whether it may be over by itself; else someone has to change something.
    """

    UNREACHABLE = "it can't be reached", True
    STOPPED = "it stops, starts or recovers", True
    CROWDED = "it has no connection to spare", True
    READ_ONLY = "it takes no writes", True
    FULL = "its disk is full", True
    SILENT = "it did not answer within DATABASE_TIMEOUT", True
    LOCKED = "others hold its locks for too long", True
    CUT_SHORT = "it cancelled a statement, by a timeout or by request", True
    SHUT_OUT = "it refuses the login: see NAME, USER and PASSWORD in DATABASES", False
    UNMIGRATED = "a table or a column is missing: run manage.py migrate", False
    FORBIDDEN = "its user lacks a right: grant it", False
    OTHER = "it refuses a statement", False

    def __init__(self, words: str, passes: bool) -> None:
        self.words = words
        self.passes = passes

    @property
    def family(self) -> Problem:
        """The kind under which it is logged: a server that goes down raises many errors."""
        gone = (Problem.STOPPED, Problem.SILENT)
        return Problem.UNREACHABLE if self in gone else self
