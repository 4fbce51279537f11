"""The isolation level of a connection to MySQL or MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from django.db.backends.base.base import BaseDatabaseWrapper

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
