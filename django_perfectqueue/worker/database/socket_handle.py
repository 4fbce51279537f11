"""Break off a blocked database call from another thread, through its socket."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from contextlib import closing
from typing import TYPE_CHECKING

from django_perfectqueue.store.notify.postgres import apart

if TYPE_CHECKING:
    from _typeshed import HasFileno

CANCEL = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity
WHERE pid = %s AND wait_event_type = 'Lock' AND usename = current_user
    AND datname = current_database()
"""

logger = logging.getLogger("django_perfectqueue.database")


class SocketHandle:
    """
    A duplicate of a connection's socket descriptor.

    The thread that uses the connection creates it, since drivers are not thread-safe. A
    duplicate never refers to another file, as a closed and reused descriptor would.
    """

    def __init__(self, connection: HasFileno, using: str) -> None:
        self.connection = connection
        self.using = using
        self.backend = getattr(getattr(connection, "info", None), "backend_pid", None)
        self.socket = socket_of(connection)
        if self.socket is not None:
            weakref.finalize(self, self.socket.close)
        self.lock = threading.Lock()
        self.cancel_sent = False

    def cancel_query(self) -> None:
        """
        Cancel the statement on the server if it waits for a lock, without waiting for that.

        Only on PostgreSQL, whose backend would not notice the closed socket and keep its
        locks. A connection of its own is used: psycopg2's cancel() blocks all threads.
        """
        self.cancel_sent = True
        if self.backend is not None:
            threading.Thread(target=self.cancel, name="cancel", daemon=True).start()

    def cancel(self) -> None:
        try:
            with closing(apart(self.using)) as other, other.cursor() as cursor:
                cursor.execute(CANCEL, [self.backend])
        except Exception as error:
            logger.debug("A statement could not be cancelled. %s", type(error).__name__)

    def shutdown(self) -> None:
        """Shut the socket down: a call that waits for an answer gets an error."""
        with self.lock, contextlib.suppress(OSError):
            if self.socket is not None:
                self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the duplicate; the connection stays open."""
        with self.lock:
            if self.socket is not None:
                self.socket.close()
            self.socket = None


def socket_of(connection: HasFileno) -> socket.socket | None:
    """Return a duplicate of a connection's socket; None without a socket."""
    try:
        copy = os.dup(connection.fileno())
    except Exception:
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
