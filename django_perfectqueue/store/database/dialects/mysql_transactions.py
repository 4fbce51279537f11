"""Transactions of the store's own on MySQL and MariaDB: their isolation, and round trips."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ..packets import sent_with_first

BEGIN = "START TRANSACTION"
READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
LEVEL = """
SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')
"""

committed: WeakSet[BaseDatabaseWrapper] = WeakSet()
"""The connections on which a transaction of the store's own is at READ COMMITTED."""


@contextmanager
def begun_with_first(connection: Any) -> Iterator[None]:
    """Open a transaction at READ COMMITTED on a connection that is in none."""
    starts = (BEGIN,) if reads_committed(connection) else (READ_COMMITTED, BEGIN)
    several = takes_several_statements(connection)
    with ExitStack() as stack:
        # As SQLite's backend does: else atomic() switches autocommit off and on, by round trips.
        connection._start_transaction_under_autocommit = nothing
        try:
            stack.enter_context(transaction.atomic(connection.alias))
        finally:
            del connection._start_transaction_under_autocommit
        committed.add(connection)
        stack.callback(committed.discard, connection)
        with sent_with_first(connection, starts, several=several, skip=len(starts)):
            yield


def nothing() -> None:
    return


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
