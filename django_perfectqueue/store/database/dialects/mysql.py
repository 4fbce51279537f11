"""MySQL and MariaDB: lock by SELECT, then write by primary key."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from operator import attrgetter

from django.db.backends.utils import CursorWrapper as Cursor

from ...values import Completion, Now
from .base import CHARGED, TICKETS, Closed, Entry, in_parts, naive, numbers
from .mysql_server import MySQLErrors, begun_with_first, committed, filled_for, reads_committed
from .mysql_submit import MICROSECONDS, MySQLSubmit
from .packet import unanswered

PACKET = 4 * 1024 * 1024
# In bytes: what a statement holds beside a long text.
AROUND = 64 * 1024
ESCAPED = (b"\x00", b"\n", b"\r", b"\x1a", b'"', b"'", b"\\")

HELD = """
SELECT "task_id", "token", "followed", "charged"
FROM "perfectqueue_ticket" FORCE INDEX (PRIMARY)
WHERE "task_id" IN ({ids}) AND "state" = 2
ORDER BY "task_id" FOR UPDATE
"""

DELETED = 500
DELETE = """
DELETE "gone" FROM ({given}) AS "given"
STRAIGHT_JOIN "{table}" AS "gone" FORCE INDEX (PRIMARY) ON "gone"."{key}" = "given"."id"
"""

UNFOLLOWED = 'WHERE "gone"."followed" IS NULL'
FOLLOWED = """
SELECT "task_id", "followed" FROM "perfectqueue_ticket" FORCE INDEX (PRIMARY)
WHERE "task_id" IN ({ids}) FOR UPDATE
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

CHARGE = f"""
UPDATE ({{given}}) AS "given"
STRAIGHT_JOIN "perfectqueue_account" AS "account" FORCE INDEX (PRIMARY)
    ON "account"."id" = "given"."account"
SET {", ".join([f'"account"."{column}" = {sql}' for column, sql in CHARGED.items()])}
"""

# By itself: as a part of CHARGE it would wait for tickets that others have yet to commit.
DOZE = f"""
UPDATE "perfectqueue_account" AS "account" SET "has_waiting" = FALSE, "since" = {{now}}
WHERE "id" IN ({{accounts}}) AND NOT EXISTS ({TICKETS})
"""

END_IDLE_TRANSACTIONS = """
/* perfectqueue */ SET SESSION idle_transaction_timeout = IF(
    @@SESSION.idle_transaction_timeout = 0, %s, @@SESSION.idle_transaction_timeout
)
"""
LET_STAND = """
/* perfectqueue */ SET @perfectqueue_idle = @@SESSION.idle_transaction_timeout,
    SESSION idle_transaction_timeout = %s
"""
DEEP = "SET STATEMENT max_recursive_iterations = 4294967295 FOR "
LET_STAND_AS_BEFORE = "/* perfectqueue */ SET SESSION idle_transaction_timeout = @perfectqueue_idle"


class MySQL(MySQLErrors, MySQLSubmit):
    filled = staticmethod(filled_for)
    begun = staticmethod(begun_with_first)
    by_primary_key = " FORCE INDEX (PRIMARY)"
    at_read_uncommitted = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
    share_clause = " LOCK IN SHARE MODE"
    # A loose index scan; a recursive query would stop at the 1,000th lane.
    waiting_lanes = """
        SELECT "lane" FROM (
            SELECT DISTINCT "state", "lane" FROM "perfectqueue_ticket" WHERE "state" = 0
        ) AS "known"
    """
    # A loose index scan; in a recursive query the server would read all rows behind a name.
    used_queues = """
        SELECT "name" FROM (
            SELECT DISTINCT "queue" AS "name" FROM "perfectqueue_task"
            ORDER BY "queue" LIMIT %(most)s
        ) AS "known"
    """
    clock = "UTC_TIMESTAMP(6)"
    given_clock = "CAST(%(now)s AS DATETIME(6))"
    quote = "`"

    def end_idle_transactions(self, cursor: Cursor, seconds: float) -> None:
        """Limit the time of idle transactions on MariaDB; MySQL has no such limit."""
        if cursor.db.mysql_is_mariadb:
            cursor.execute(END_IDLE_TRANSACTIONS, [math.ceil(seconds)])

    def set_idle_timeout(self, cursor: Cursor, seconds: float | None) -> str | None:
        if not cursor.db.mysql_is_mariadb:
            return None
        cursor.execute(LET_STAND, [math.ceil(seconds or 0)])
        return LET_STAND_AS_BEFORE

    def reset_idle_timeout(self, cursor: Cursor) -> None:
        cursor.execute(LET_STAND_AS_BEFORE)

    def deep(self, cursor: Cursor) -> str:
        # MariaDB stops at the 1,000th level without an error.
        return DEEP if cursor.db.mysql_is_mariadb else ""

    def current_clause(self, cursor: Cursor) -> str:
        fresh = reads_committed(cursor.db) or cursor.db in committed
        return "" if fresh else " LOCK IN SHARE MODE"

    def delete(
        self, cursor: Cursor, table: str, ids: Iterable[int], *, key: str = "id", which: str = ""
    ) -> None:
        # By IN it would read a small table as a whole, and wait for each row that another holds.
        delete = DELETE.replace("{table}", table).replace("{key}", key)
        left = iter(ids)
        while some := list(islice(left, DELETED)):
            given = " UNION ALL ".join([f'SELECT {int(id_)} AS "id"' for id_ in some])
            self.execute(cursor, delete.replace("{given}", given) + which)

    def later(self, seconds: str) -> str:
        return MICROSECONDS.replace("%({name})s", seconds)

    def upsert(
        self, table: str, key: Sequence[str], changes: Mapping[str, str], *, where: str = ""
    ) -> str:
        changes = changes or {key[0]: "{old}"}
        return f"ON DUPLICATE KEY UPDATE {self.changed(table, changes)}"

    def inserted(self, column: str) -> str:
        return f'VALUES("{column}")'

    def by_index(self, name: str) -> str:
        return f" FORCE INDEX ({name})"

    def parameter(self, moment: datetime | None) -> str | None:
        return None if moment is None else str(naive(moment))

    def moment(self, value: datetime) -> datetime:
        return value.replace(tzinfo=timezone.utc)

    def too_long(self, cursor: Cursor, text: str) -> str:
        most, length = packet_of(cursor), escaped_length(text)
        if length + AROUND <= most:
            return ""
        return (
            f"it takes {length:,} bytes in a statement, and the server's max_allowed_packet is"
            f" {most:,}"
        )

    def finish(
        self, cursor: Cursor, completions: Sequence[Completion], worker: str, now: Now
    ) -> Closed:
        given = sorted(completions, key=attrgetter("lease.task_id"))
        ids = numbers([done.lease.task_id for done in given])
        rows = self.execute(cursor, HELD.replace("{ids}", ids)).fetchall()
        held = {(task_id, token): (by, charged) for task_id, token, by, charged in rows}
        written = [done for done in given if (done.lease.task_id, done.lease.token) in held]
        if not written:
            return {}
        closed = [done.lease.task_id for done in written]
        self.delete(cursor, "perfectqueue_ticket", closed, key="task_id")
        # The server closes the connection at a larger statement.
        sizes = [escaped_length(done.result) if done.result else 0 for done in written]
        for some in in_parts(written, sizes, self.packet(cursor, written)):
            self.write_results(cursor, some, worker, now)
        fences = [(done.lease.task_id, done.lease.token) for done in written]
        return {fence: held[fence] for fence in fences}

    def remove(self, cursor: Cursor, ids: Collection[int]) -> dict[int, int]:
        # MySQL has no RETURNING; so few are followed that the other statements are rare.
        self.delete(cursor, "perfectqueue_ticket", ids, key="task_id", which=UNFOLLOWED)
        if cursor.rowcount == len(ids):
            return {}
        rows = self.execute(cursor, FOLLOWED.replace("{ids}", numbers(ids))).fetchall()
        if followed := dict(rows):
            self.delete(cursor, "perfectqueue_ticket", followed, key="task_id")
        return followed

    def packet(self, cursor: Cursor, completions: Sequence[Completion]) -> int:
        """Return how many bytes of results go into a statement; ask only where they are many."""
        if sum([len(done.result or "") for done in completions]) <= AROUND:
            return PACKET
        return max(1, min(PACKET, packet_of(cursor) - AROUND))

    def write_results(
        self, cursor: Cursor, completions: Sequence[Completion], worker: str, now: Now
    ) -> None:
        monotonic = time.monotonic()
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

    def charge(self, cursor: Cursor, entries: Sequence[Entry], now: Now) -> int | None:
        given = " UNION ALL ".join(
            "SELECT " + ", ".join([f'{v!r} AS "{name}"' for name, v in entry._asdict().items()])
            for entry in entries
        )
        self.execute(unanswered(cursor), CHARGE.replace("{given}", given), now=now)
        short = [entry.account for entry in entries if entry.short]
        if not short:
            return 0
        doze = DOZE.replace("{accounts}", numbers(short))
        return int(self.execute(cursor, doze, now=now).rowcount)


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
