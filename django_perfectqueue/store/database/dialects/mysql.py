"""MySQL and MariaDB: lock by SELECT, then write by primary key."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta, timezone
from itertools import islice
from operator import attrgetter
from weakref import WeakSet

from django.db import Error, IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper as Cursor

from ...values import Completion, Moment, Submission
from ..diagnosis import Ailment
from .base import (
    ACCOUNT,
    UNPREPARED,
    Dialect,
    Entry,
    Report,
    Row,
    Waking,
    average,
    naive,
    numbers,
)
from .one_task import (
    SPAN,
    TICKET,
    Form,
    Stored,
    Value,
    form_of,
    statements_of,
    values_of,
)

PACKET = 4 * 1024 * 1024
AROUND = 64 * 1024
"""In bytes: what a statement holds beside a long text."""
ESCAPED = (b"\x00", b"\n", b"\r", b"\x1a", b'"', b"'", b"\\")
DUPLICATE_ENTRY = 1062
RECORD_CHANGED = 1020
LOCK_WAIT_TIMEOUT = 1205
DEADLOCK = 1213
ROLLED_BACK_AT_COMMIT = 3101

LOST = {
    0,  # the driver's own, for a connection that it has closed
    1040,  # too many connections
    1047,  # Galera: the node is not ready
    1053,  # the server shuts down
    1077,
    1079,
    1080,
    1152,  # aborted
    1158,  # network errors, as the server sees them
    1159,
    1160,
    1161,
    1180,  # error during COMMIT: Galera has lost the node
    1184,
    1290,  # read-only: the server has become a replica
    1792,
    1836,
    1927,  # MariaDB: killed
    2002,  # can't connect
    2003,
    2005,
    2006,  # gone away
    2012,
    2013,  # lost
    2055,
    3169,  # MySQL: killed
    4031,  # idle for too long
}

AILMENTS = {
    **dict.fromkeys((1040, 1203, 1226), Ailment.CROWDED),
    **dict.fromkeys((1053, 1077, 1079, 1080, 1927), Ailment.STOPPED),
    **dict.fromkeys((1290, 1792, 1836), Ailment.READ_ONLY),
    **dict.fromkeys((3, 1021, 1114), Ailment.FULL),
    **dict.fromkeys((1044, 1045, 1049, 1698, 3118, 4151), Ailment.SHUT_OUT),
    **dict.fromkeys((1054, 1146), Ailment.UNMIGRATED),
    **dict.fromkeys((1142, 1143, 1227, 1370), Ailment.FORBIDDEN),
    **dict.fromkeys((1020, 1205, 1213, 3101), Ailment.LOCKED),
    **dict.fromkeys((1317, 1969, 3024), Ailment.CUT_SHORT),
}

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

BEGIN = ("START TRANSACTION",)
END = ("COMMIT",)
END_AND_LOOK = (*END, "SELECT 1 FROM `perfectqueue_lane` WHERE `id` = %(lane)s AND `has_waiting`")
FROM_STORED = 'FROM "perfectqueue_task" WHERE "id" = LAST_INSERT_ID()'
MICROSECONDS = "TIMESTAMPADD(MICROSECOND, ROUND(%({name})s * 1000000), {now})"

HELD = """
SELECT "task_id", "token", "followed" FROM "perfectqueue_ticket" FORCE INDEX (PRIMARY)
WHERE "task_id" IN ({ids}) AND "state" = 2
ORDER BY "task_id" FOR UPDATE
"""

DELETED = 500
DELETE = """
DELETE "gone" FROM ({given}) AS "given"
STRAIGHT_JOIN "{table}" AS "gone" FORCE INDEX (PRIMARY) ON "gone"."{key}" = "given"."id"
"""

REMOVE = 'DELETE FROM "perfectqueue_ticket" WHERE "task_id" = %(task_id)s'
REMOVE_UNFOLLOWED = f'{REMOVE} AND "followed" IS NULL'
FOLLOWED = """
SELECT "followed" FROM "perfectqueue_ticket" WHERE "task_id" = %(task_id)s FOR UPDATE
"""

# Without the hint a small table is read as a whole, and each of its rows waited for.
FINISH = """
UPDATE ({given}) AS "given"
STRAIGHT_JOIN "perfectqueue_task" AS "task" FORCE INDEX (PRIMARY) ON "task"."id" = "given"."id"
SET "task"."outcome" = 'finished', "task"."attempt" = "given"."attempt",
    "task"."worker" = %(worker)s,
    "task"."started_at" = TIMESTAMPADD(MICROSECOND, -"given"."started", {now}),
    "task"."ended_at" = TIMESTAMPADD(MICROSECOND, -"given"."ended", {now}),
    "task"."result" = "given"."result"
"""

CHARGE = """
UPDATE ({given}) AS "given"
STRAIGHT_JOIN "perfectqueue_lane" AS "lane" FORCE INDEX (PRIMARY) ON "lane"."id" = "given"."lane"
SET "lane"."running" = "lane"."running" + "given"."running",
    "lane"."virtual_time" = "lane"."virtual_time" + "given"."seconds" / "lane"."weight",
    "lane"."cost" = {average},
    "lane"."since" = CASE WHEN "given"."served" THEN {now} ELSE "lane"."since" END,
    "lane"."finish_tag" = GREATEST("lane"."finish_tag", "given"."finish_tag")
""".replace("{average}", average('"lane"."cost"', mean='"given"."mean"', keep='"given"."keep"'))

BEHIND = """
SELECT "lane"."id", {columns}
FROM "perfectqueue_lane" AS "lane" FORCE INDEX ("perfectqueue_lane_account")
STRAIGHT_JOIN "perfectqueue_lane" AS "own" ON "own"."id" = "lane"."account"
WHERE "lane"."account" IN ({accounts}) AND NOT ("lane"."gate" = 0)
ORDER BY "lane"."id"
"""

COPY = """
UPDATE ({given}) AS "given"
STRAIGHT_JOIN "perfectqueue_lane" AS "lane" FORCE INDEX (PRIMARY) ON "lane"."id" = "given"."lane"
SET {columns}
"""

WAKE = """
INSERT INTO "perfectqueue_lane" (
    "id", "account", "gate", "keys", "queue", "user", "virtual_time", "cost", "weight",
    "max_running", "paused", "policy", "running", "has_waiting", "since"
) VALUES {rows}
ON DUPLICATE KEY UPDATE
    "since" = CASE WHEN "has_waiting" THEN "since" ELSE VALUES("since") END,
    "virtual_time" = CASE
        WHEN "policy" <> VALUES("policy") THEN VALUES("virtual_time")
        WHEN "has_waiting" THEN "virtual_time"
        ELSE GREATEST("virtual_time", VALUES("virtual_time"))
    END,
    "has_waiting" = "has_waiting" OR VALUES("has_waiting"), "policy" = VALUES("policy")
"""


END_IDLE_TRANSACTIONS = """
SET SESSION idle_transaction_timeout = IF(
    @@SESSION.idle_transaction_timeout = 0, %s, @@SESSION.idle_transaction_timeout
)
"""
LET_STAND = """
SET @perfectqueue_idle = @@SESSION.idle_transaction_timeout,
    SESSION idle_transaction_timeout = %s
"""
LET_STAND_AS_BEFORE = "SET SESSION idle_transaction_timeout = @perfectqueue_idle"


READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
LEVEL = """
SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')
"""

committed: WeakSet[BaseDatabaseWrapper] = WeakSet()
"""The connections on which a transaction of the store's own is at READ COMMITTED."""


@contextmanager
def at_read_committed(connection: BaseDatabaseWrapper) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(READ_COMMITTED)
    committed.add(connection)
    try:
        yield
    finally:
        committed.discard(connection)


class MySQL(Dialect):
    bounds_statements = True
    by_primary_key = " FORCE INDEX (PRIMARY)"
    at_read_uncommitted = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
    clock = "UTC_TIMESTAMP(6)"
    given_clock = "CAST(%(now)s AS DATETIME(6))"
    quote = "`"

    def end_idle_transactions(self, cursor: Cursor, seconds: float) -> None:
        """Do it on MariaDB; MySQL has nothing of the kind."""
        if cursor.db.mysql_is_mariadb:
            cursor.execute(END_IDLE_TRANSACTIONS, [math.ceil(seconds)])

    def let_stand(self, cursor: Cursor, seconds: float | None) -> str | None:
        if not cursor.db.mysql_is_mariadb:
            return None
        cursor.execute(LET_STAND, [math.ceil(seconds or 0)])
        return "set"

    def let_stand_as_before(self, cursor: Cursor, patience: str) -> None:
        cursor.execute(LET_STAND_AS_BEFORE)

    def own(self, connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
        """
        Begin at READ COMMITTED whatever level the connection has.

        At REPEATABLE READ a lock finds the newest rows, and a SELECT those of before: so a
        ticket would be taken whose task can't be seen.
        """
        return UNPREPARED if reads_committed(connection) else at_read_committed(connection)

    def current_clause(self, cursor: Cursor) -> str:
        fresh = reads_committed(cursor.db) or cursor.db in committed
        return "" if fresh else " LOCK IN SHARE MODE"

    def delete(self, cursor: Cursor, table: str, ids: Iterable[int], *, key: str = "id") -> None:
        # By IN it would read a small table as a whole, and wait for each row that another holds.
        delete = DELETE.replace("{table}", table).replace("{key}", key)
        left = iter(ids)
        while some := list(islice(left, DELETED)):
            given = " UNION ALL ".join([f'SELECT {int(id_)} AS "id"' for id_ in some])
            self.execute(cursor, delete.replace("{given}", given))

    def later(self, seconds: str) -> str:
        return MICROSECONDS.replace("%({name})s", seconds)

    def waiting_lanes(self) -> str:
        # A loose index scan; a recursive query would stop at the 1,000th lane.
        return """
            SELECT "lane" FROM (
                SELECT DISTINCT "state", "lane" FROM "perfectqueue_ticket" WHERE "state" = 0
            ) AS "known"
        """

    def used_queues(self) -> str:
        # A loose index scan; in a recursive query the server would read all rows behind a name.
        return """
            SELECT "name" FROM (
                SELECT DISTINCT "queue" AS "name" FROM "perfectqueue_task"
                ORDER BY "queue" LIMIT %(most)s
            ) AS "known"
        """

    def upsert(self, table: str, key: Sequence[str], changes: Mapping[str, str]) -> str:
        values = ", ".join(
            f'"{column}" = '
            + sql.replace("{old}", f'"{column}"').replace("{new}", f'VALUES("{column}")')
            for column, sql in changes.items()
        )
        return f"ON DUPLICATE KEY UPDATE {values}"

    def by_index(self, name: str) -> str:
        return f" FORCE INDEX ({name})"

    def share_clause(self) -> str:
        return " LOCK IN SHARE MODE"

    def parameter(self, moment: datetime | None) -> str | None:
        return None if moment is None else str(naive(moment))

    def moment(self, value: datetime) -> datetime:
        return value.replace(tzinfo=timezone.utc)

    def passes(self, error: Exception) -> bool:
        return number_of(error) in {
            RECORD_CHANGED,
            LOCK_WAIT_TIMEOUT,
            DEADLOCK,
            ROLLED_BACK_AT_COMMIT,
        }

    def lost(self, error: Exception) -> bool:
        return number_of(error) in LOST

    def ailment(self, error: Exception) -> Ailment:
        otherwise = Ailment.UNREACHABLE if self.lost(error) else Ailment.OTHER
        return AILMENTS.get(number_of(error) or 0, otherwise)

    def too_long(self, cursor: Cursor, text: str) -> str:
        most, length = packet_of(cursor), escaped_length(text)
        if length + AROUND <= most:
            return ""
        return (
            f"it takes {length:,} bytes in a statement, and the server's max_allowed_packet is"
            f" {most:,}"
        )

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

    def finish(
        self, cursor: Cursor, completions: Sequence[Completion], report: Report
    ) -> dict[tuple[int, int], int | None]:
        given = sorted(completions, key=attrgetter("lease.task_id"))
        ids = numbers([done.lease.task_id for done in given])
        rows = self.execute(cursor, HELD.replace("{ids}", ids)).fetchall()
        held = {(task_id, token): followed for task_id, token, followed in rows}
        written = [done for done in given if (done.lease.task_id, done.lease.token) in held]
        if not written:
            return {}
        closed = [done.lease.task_id for done in written]
        self.delete(cursor, "perfectqueue_ticket", closed, key="task_id")
        for some in in_packets(written, self.packet(cursor, written)):
            self.write_results(cursor, some, report)
        fences = [(done.lease.task_id, done.lease.token) for done in written]
        return {fence: held[fence] for fence in fences}

    def remove(self, cursor: Cursor, task_id: int) -> int | None:
        # MySQL has no RETURNING; so few are followed that the other statements are rare.
        own = {"task_id": task_id}
        self.execute(cursor, REMOVE_UNFOLLOWED, own)
        if cursor.rowcount or not (row := self.execute(cursor, FOLLOWED, own).fetchone()):
            return None
        self.execute(cursor, REMOVE, own)
        return int(row[0])

    def packet(self, cursor: Cursor, completions: Sequence[Completion]) -> int:
        """Return how many bytes of results go into a statement; ask only where they are many."""
        if sum([len(done.result or "") for done in completions]) <= AROUND:
            return PACKET
        return max(1, min(PACKET, packet_of(cursor) - AROUND))

    def write_results(
        self, cursor: Cursor, completions: Sequence[Completion], report: Report
    ) -> None:
        worker, monotonic, now = report
        given: list[str] = []
        parameters: dict[str, object] = {"worker": worker}
        for number, done in enumerate(completions):
            result = "NULL"
            if done.result is not None:
                result, parameters[f"r{number}"] = f"%(r{number})s", done.result
            started, ended = (monotonic - done.started) * 1e6, (monotonic - done.ended) * 1e6
            given.append(
                f'SELECT {done.lease.task_id} AS "id", {done.lease.attempt} AS "attempt",'
                f' {started:.0f} AS "started", {ended:.0f} AS "ended", {result} AS "result"'
            )
        finish = FINISH.replace("{given}", " UNION ALL ".join(given))
        self.execute(cursor, finish, parameters, now=now)

    def insert_missing(
        self, cursor: Cursor, into: str, parameters: Mapping[str, object], *, key: str
    ) -> None:
        # Not by IGNORE, which takes a shared lock on a row that is there: two who both go
        # on to lock it would wait for each other.
        update = f'INSERT {into} ON DUPLICATE KEY UPDATE "{key}" = "{key}"'
        self.execute(cursor, update, parameters)

    def charge(
        self, cursor: Cursor, entries: Sequence[Entry], now: datetime | None
    ) -> Sequence[int] | None:
        given = " UNION ALL ".join(
            f'SELECT {entry.lane} AS "lane", {entry.running} AS "running",'
            f' {float(entry.seconds)!r} AS "seconds", {float(entry.mean)!r} AS "mean",'
            f' {float(entry.keep)!r} AS "keep", {int(entry.served)} AS "served",'
            f' {float(entry.finish_tag)!r} AS "finish_tag"'
            for entry in entries
        )
        self.execute(cursor, CHARGE.replace("{given}", given), now=now)
        return None

    def copy_accounts(self, cursor: Cursor, accounts: Iterable[int]) -> None:
        # Read first: an UPDATE that joined would lock whatever rows it passes on its way.
        columns = ", ".join(f'"own"."{column}"' for column in ACCOUNT)
        behind = BEHIND.replace("{columns}", columns)
        behind = behind.replace("{accounts}", numbers(sorted(accounts)))
        rows = self.execute(cursor, behind).fetchall()
        if not rows:
            return
        given = " UNION ALL ".join(
            f'SELECT {lane} AS "lane", '
            + ", ".join(
                f'{literal(value)} AS "{column}"'
                for column, value in zip(ACCOUNT, values, strict=True)
            )
            for lane, *values in rows
        )
        columns = ", ".join(f'"lane"."{column}" = "given"."{column}"' for column in ACCOUNT)
        copy = COPY.replace("{given}", given).replace("{columns}", columns)
        self.execute(cursor, copy)

    def wake(self, cursor: Cursor, lanes: Sequence[Waking], now: datetime | None) -> None:
        values: list[str] = []
        parameters: dict[str, object] = {}
        for number, lane in enumerate(lanes):
            parameters[f"q{number}"] = lane.queue
            parameters[f"u{number}"] = lane.user
            parameters[f"k{number}"] = lane.keys
            parameters[f"s{number}"] = self.parameter(lane.since)
            since = "{now}" if lane.since is None else f"%(s{number})s"
            cap = "NULL" if lane.max_running is None else str(int(lane.max_running))
            values.append(
                f"({lane.lane}, {lane.account}, {lane.gate}, %(k{number})s, %(q{number})s,"
                f" %(u{number})s, {lane.virtual_time!r}, {lane.cost!r}, {lane.weight!r}, {cap},"
                f" {int(lane.paused)}, {int(lane.policy)}, 0, {int(lane.has_waiting)}, {since})"
            )
        self.execute(cursor, WAKE.replace("{rows}", ", ".join(values)), parameters, now=now)


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


def in_one_packet(
    cursor: Cursor, statements: Sequence[str], values: Mapping[str, Value]
) -> Iterator[None]:
    """Send statements, together where the driver can; yield once the result of each is there."""
    if takes_several_statements(cursor.db):
        cursor.execute("; ".join(statements), values)
        yield
        for _ in statements[1:]:
            cursor.cursor.nextset()
            yield
        return
    for statement in statements:
        cursor.execute(statement, values)
        yield


def takes_several_statements(connection: BaseDatabaseWrapper) -> bool:
    multiple = connection.settings_dict["OPTIONS"].get("multi_statements", True)
    return bool(multiple) and type(connection.connection).__module__.startswith("MySQLdb")


def literal(value: float | datetime | None) -> str:
    """Return a value that the server gave as SQL."""
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, datetime) else repr(value)


def reads_committed(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a connection is at READ COMMITTED; ask the server once, where Django can't."""
    if connection.connection is None:
        connection.ensure_connection()
    level = getattr(connection, "isolation_level", None)
    if level is None:
        wire = connection.connection
        level = getattr(wire, "perfectqueue_level", None)
        if level is None:
            with connection.cursor() as cursor:
                cursor.execute(LEVEL)
                level = wire.perfectqueue_level = cursor.fetchone()[1]
    return level.lower().replace("-", " ") in ("read committed", "read uncommitted")


def is_taken(error: BaseException) -> bool:
    """Return whether an error says that a key is taken."""
    return isinstance(error, IntegrityError) and number_of(error) == DUPLICATE_ENTRY


def number_of(error: Exception) -> int | None:
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) else None


def in_packets(completions: Sequence[Completion], most: int) -> Iterator[list[Completion]]:
    """Yield parts whose results fit into one statement: the server closes at a larger one."""
    packet: list[Completion] = []
    length = 0
    for done in completions:
        own = escaped_length(done.result) if done.result else 0
        if packet and length + own > most:
            yield packet
            packet, length = [], 0
        packet.append(done)
        length += own
    if packet:
        yield packet


def packet_of(cursor: Cursor) -> int:
    """Return how many bytes the server takes as one statement; ask it once a connection."""
    wire = cursor.db.connection
    known = getattr(wire, "perfectqueue_packet", None)
    if known is None:
        cursor.execute("SELECT @@max_allowed_packet")
        known = wire.perfectqueue_packet = int(cursor.fetchone()[0])
    return known


def escaped_length(text: str) -> int:
    """Return how many bytes a text takes at most within a statement."""
    data = text.encode()
    return len(data) + sum(data.count(byte) for byte in ESCAPED)
