"""What PostgreSQL wants of transactions and arrays, and what its errors say."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta

from django.db import DatabaseError, Error, InterfaceError, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ...values import Moment
from .base import Dialect, Problem
from .packet import Packet, filled, joined, packets

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"

ROLLBACK = ["ROLLBACK"]
COMMIT = ["COMMIT"]
# One that the server may lose in a crash.
COMMIT_ASYNCHRONOUSLY = ["SET LOCAL synchronous_commit TO OFF", *COMMIT]
# The locks go before the disk has the commit. The transaction behind it has nothing but a record
# to be written, which the disk has only after all before it: with it this waits for the disk.
COMMIT_AND_WAIT = [
    *COMMIT_ASYNCHRONOUSLY,
    "SELECT pg_logical_emit_message(true, 'perfectqueue', '')",
]

# What libpq calls a connection without a transaction.
IDLE = 0


@functools.cache
def is_psycopg3() -> bool:
    # Imported on use: a project on another database may have no driver for this one.
    from django.db.backends.postgresql import psycopg_any

    return bool(psycopg_any.is_psycopg3)


def takes_several_statements(connection: BaseDatabaseWrapper) -> bool:
    by_server = connection.settings_dict["OPTIONS"].get("server_side_binding", False)
    return not (by_server and is_psycopg3())


@contextmanager
def without_waiting(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Send the statements of this block, and the driver's BEGIN, before their answers are read."""
    if not is_psycopg3():
        yield
        return
    from psycopg import Pipeline

    pipeline = connection.connection.pipeline() if Pipeline.is_supported() else nullcontext()
    with connection.wrap_database_errors, pipeline:
        yield


@contextmanager
def begun_with_first(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Open a transaction at READ COMMITTED on a connection that is in none."""
    with transaction.atomic(connection.alias), filled_for(connection, [BEGIN]) as packet:
        # Else the driver sends BEGIN itself, and waits for the answer.
        connection.connection.autocommit = True
        try:
            yield
        except BaseException:
            with suppress(Error):
                end(connection, ROLLBACK)
            raise
        end(connection, ROLLBACK if connection.needs_rollback else packet.end or COMMIT)


def filled_for(
    connection: BaseDatabaseWrapper, starts: Iterable[str]
) -> AbstractContextManager[Packet]:
    several = takes_several_statements(connection)
    return filled(connection, starts, several=several, skip=int(is_psycopg3()))


def end(connection: BaseDatabaseWrapper, how: Sequence[str]) -> None:
    """
    End the transaction by what waits to be sent and these statements, where atomic() does not: on
    psycopg 3 it asks for the server's state, on psycopg2 it ends none that it has not begun itself.
    """
    wire = connection.connection
    packet = packets.get(connection)
    waiting = [] if packet is None or how is ROLLBACK else packet.take()
    if wire is None or (wire.info.transaction_status == IDLE and not waiting):
        return
    statements = [*waiting, *((one, None) for one in how)]
    if is_psycopg3() and len(statements) == 1:
        return
    if takes_several_statements(connection):
        statements = [joined(statements)]
    try:
        # What frames a transaction is none of Django's statements.
        open_cursor = connection.cursor if waiting else wire.cursor
        with connection.wrap_database_errors, open_cursor() as cursor:
            for sql, given in statements:
                cursor.execute(sql, given)
    except BaseException as error:
        # The next statements would go on in it.
        if how is ROLLBACK or not isinstance(error, Error):
            connection.close()
        else:
            with suppress(Error):
                end(connection, ROLLBACK)
        raise


# What an error of PostgreSQL says, by its code.


UNPREPARED = {
    "26000",  # invalid_sql_statement_name: a pooler has changed the server's connection
    "42P05",  # duplicate_prepared_statement: another client has prepared it there
}

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

PROBLEMS = {
    "25006": Problem.READ_ONLY,
    "42501": Problem.FORBIDDEN,
    "53100": Problem.FULL,
    "53300": Problem.CROWDED,
    "57014": Problem.CUT_SHORT,
    **dict.fromkeys(("28000", "28P01", "3D000"), Problem.SHUT_OUT),
    **dict.fromkeys(("3F000", "42703", "42P01"), Problem.UNMIGRATED),
    # serialization_failure, deadlock_detected, lock_not_available
    **dict.fromkeys(("40001", "40P01", "55P03"), Problem.LOCKED),
    **dict.fromkeys(("57P01", "57P02", "57P03"), Problem.STOPPED),
}
# Where another language is set, these are not found, and the error itself decides.
SAID = {
    **dict.fromkeys(("starting up", "shutting down", "recovery"), Problem.STOPPED),
    **dict.fromkeys(("too many", "connection slots"), Problem.CROWDED),
    **dict.fromkeys((*REFUSED, "not permitted"), Problem.SHUT_OUT),
}


class PostgreSQLErrors(Dialect):
    def passes(self, error: Exception) -> bool:
        return state_of(error) in UNPREPARED or super().passes(error)

    def lost(self, error: Exception) -> bool:
        state = state_of(error)
        if state is not None:
            return state in LOST or state.startswith("08")
        if type(error) not in (DatabaseError, InterfaceError, OperationalError):
            return False
        return not any(words in str(error) for words in REFUSED)

    def problem_of(self, error: Exception) -> Problem:
        if (state := state_of(error)) is not None:
            otherwise = Problem.UNREACHABLE if self.lost(error) else Problem.OTHER
            return PROBLEMS.get(state, otherwise)
        if said := [problem for words, problem in SAID.items() if words in str(error)]:
            return said[0]
        return Problem.UNREACHABLE if self.lost(error) else Problem.OTHER


def state_of(error: BaseException) -> str | None:
    """Return the code of an error, as both drivers keep it, if the server sent one."""
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


# PostgreSQL's text of an array, as one parameter carries a column of a batch.


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


def time_of(moment: Moment | None) -> str | None:
    """Return a time as an item of an array."""
    text = time_text(moment)
    return text and f'"{text}"'


def time_text(moment: Moment | None) -> str | None:
    """Return a time as a text; a span as its seconds behind a plus."""
    if isinstance(moment, timedelta):
        return f"+{moment.total_seconds()}"
    return None if moment is None else moment.isoformat()
