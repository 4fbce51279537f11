"""Transactions of the store's own on PostgreSQL: BEGIN goes with the first statement."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.db import Error, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ..packets import sent_with_first

IDLE = 0
"""What libpq calls a connection without a transaction."""


@functools.cache
def is_psycopg3() -> bool:
    # Imported on use: a project on another database may have no driver for this one.
    from django.db.backends.postgresql import psycopg_any

    return bool(psycopg_any.is_psycopg3)


def takes_several_statements(connection: BaseDatabaseWrapper) -> bool:
    by_server = connection.settings_dict["OPTIONS"].get("server_side_binding", False)
    return not (by_server and is_psycopg3())


@contextmanager
def begun_with_first(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Open a transaction on a connection that is in none."""
    with transaction.atomic(connection.alias):
        # Else the driver sends BEGIN itself, and waits for the answer.
        connection.connection.autocommit = True
        try:
            with sent_with_first(connection, ["BEGIN"], several=True, skip=int(is_psycopg3())):
                yield
        except BaseException:
            with suppress(Error):
                end(connection, "ROLLBACK")
            raise
        end(connection, "ROLLBACK" if connection.needs_rollback else "COMMIT")


def end(connection: BaseDatabaseWrapper, how: str) -> None:
    """
    End the transaction on psycopg2, which ends none that it has not begun itself.

    psycopg 3 asks for the server's state, so atomic() ends it.
    """
    wire = connection.connection
    if wire is None or is_psycopg3() or wire.info.transaction_status == IDLE:
        return
    try:
        with connection.wrap_database_errors, wire.cursor() as cursor:
            cursor.execute(how)
    except BaseException:
        # The next statements would go on in it.
        connection.close()
        raise
