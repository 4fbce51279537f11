"""The socket below a connection, in hand where the driver is stuck in it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from contextlib import closing
from typing import Any

from django_perfectqueue.store.notify.postgres import apart

CANCEL = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity
WHERE pid = %s AND wait_event_type = 'Lock' AND usename = current_user
    AND datname = current_database()
"""

logger = logging.getLogger("django_perfectqueue.database")


class SocketHandle:
    """
    A second handle on a connection's socket.

    Made by the thread that has the connection; the driver may refuse to tell others. Being
    a handle of its own, it never comes to mean another file when the driver closes its.
    """

    def __init__(self, connection: Any, using: str) -> None:
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
        Have the server break off the waiting of this connection for a lock, by another one.

        On PostgreSQL: it would not notice that its client has gone, and stay with what it
        holds. Returns at once; psycopg2's own cancel() would stop every thread meanwhile.
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
        """Shut the socket down: who waits for an answer gets an error."""
        with self.lock, contextlib.suppress(OSError):
            if self.socket is not None:
                self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the handle."""
        with self.lock:
            if self.socket is not None:
                self.socket.close()
            self.socket = None


def socket_of(connection: Any) -> socket.socket | None:
    """Return a handle of one's own on a connection's socket; None where it has none."""
    try:
        copy = os.dup(connection.fileno())
    except Exception:
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
