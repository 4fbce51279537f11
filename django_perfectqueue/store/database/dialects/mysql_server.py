"""What MySQL and MariaDB want of transactions, and what their errors say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

from django.db import IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .base import Dialect, Problem
from .packet import filled

BEGIN = "START TRANSACTION"
READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
LEVEL = """
SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')
"""

# The connections on which a transaction of the store's own is at READ COMMITTED.
committed: WeakSet[BaseDatabaseWrapper] = WeakSet()


@contextmanager
def begun_with_first(connection: Any) -> Iterator[None]:
    """Open a transaction at READ COMMITTED on a connection that is in none."""
    starts = (BEGIN,) if reads_committed(connection) else (READ_COMMITTED, BEGIN)
    with ExitStack() as stack:
        # As SQLite's backend does: else atomic() switches autocommit off and on, by round trips.
        connection._start_transaction_under_autocommit = lambda: None
        try:
            stack.enter_context(transaction.atomic(connection.alias))
        finally:
            del connection._start_transaction_under_autocommit
        committed.add(connection)
        stack.callback(committed.discard, connection)
        with filled_for(connection, starts):
            yield


def filled_for(connection: Any, starts: Iterable[str]) -> AbstractContextManager[object]:
    several = takes_several_statements(connection)
    return filled(connection, starts, several=several, skip=1)


def takes_several_statements(connection: BaseDatabaseWrapper) -> bool:
    multiple = connection.settings_dict["OPTIONS"].get("multi_statements", True)
    return bool(multiple) and type(connection.connection).__module__.startswith("MySQLdb")


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


# What an error of MySQL or MariaDB says, by its number.


DUPLICATE_ENTRY = 1062

# The server shuts down, or MariaDB has killed the connection.
STOPS = (1053, 1077, 1079, 1080, 1927)
# It has become a replica.
READS_ONLY = (1290, 1792, 1836)

LOST = {
    0,  # the driver's own, for a connection that it has closed
    1040,  # too many connections
    1047,  # Galera: the node is not ready
    1180,  # error during COMMIT: Galera has lost the node
    3169,  # MySQL: killed
    4031,  # idle for too long
    *STOPS,
    *READS_ONLY,
    *(1152, 1158, 1159, 1160, 1161, 1184),  # aborted, or network errors as the server sees them
    *(2002, 2003, 2005),  # can't connect
    *(2006, 2012, 2013, 2055),  # gone away, or lost
}

PROBLEMS = {
    **dict.fromkeys((1040, 1203, 1226), Problem.CROWDED),
    **dict.fromkeys(STOPS, Problem.STOPPED),
    **dict.fromkeys(READS_ONLY, Problem.READ_ONLY),
    **dict.fromkeys((3, 1021, 1114), Problem.FULL),
    **dict.fromkeys((1044, 1045, 1049, 1698, 3118, 4151), Problem.SHUT_OUT),
    **dict.fromkeys((1054, 1146), Problem.UNMIGRATED),
    **dict.fromkeys((1142, 1143, 1227, 1370), Problem.FORBIDDEN),
    **dict.fromkeys((1020, 1205, 1213, 3101), Problem.LOCKED),
    **dict.fromkeys((1317, 1969, 3024), Problem.CUT_SHORT),
}


class MySQLErrors(Dialect):
    def lost(self, error: Exception) -> bool:
        return number_of(error) in LOST

    def problem_of(self, error: Exception) -> Problem:
        otherwise = Problem.UNREACHABLE if self.lost(error) else Problem.OTHER
        return PROBLEMS.get(number_of(error) or 0, otherwise)


def is_taken(error: BaseException) -> bool:
    """Return whether an error says that a key is taken."""
    return isinstance(error, IntegrityError) and number_of(error) == DUPLICATE_ENTRY


def number_of(error: Exception) -> int | None:
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) else None
