"""Transactions of the store's own on MySQL and MariaDB: their isolation, and their round trips."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from weakref import WeakSet

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper as Cursor

from .one_task import Value

BEGIN = ("START TRANSACTION",)
READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
LEVEL = """
SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')
"""

committed: WeakSet[BaseDatabaseWrapper] = WeakSet()
"""The connections on which a transaction of the store's own is at READ COMMITTED."""


@contextlib.contextmanager
def at_read_committed(connection: BaseDatabaseWrapper) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(READ_COMMITTED)
    committed.add(connection)
    try:
        yield
    finally:
        committed.discard(connection)


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


@contextlib.contextmanager
def own_transaction(cursor: Cursor) -> Iterator[tuple[str, ...]]:
    """
    Yield what begins a transaction at READ COMMITTED, for the caller to send, and commit;
    without Django's atomic(), which takes three round trips. In a transaction of others there
    is nothing to send.
    """
    connection = cursor.db
    if connection.in_atomic_block or not connection.autocommit:
        yield ()
        return
    try:
        yield BEGIN if reads_committed(connection) else (READ_COMMITTED, *BEGIN)
        cursor.execute("COMMIT")
    except Error:
        with contextlib.suppress(Error):
            cursor.execute("ROLLBACK")
        raise
    except BaseException:
        # Results may be left, which nobody reads.
        connection.close()
        raise


def takes_several_statements(connection: BaseDatabaseWrapper) -> bool:
    multiple = connection.settings_dict["OPTIONS"].get("multi_statements", True)
    return bool(multiple) and type(connection.connection).__module__.startswith("MySQLdb")
