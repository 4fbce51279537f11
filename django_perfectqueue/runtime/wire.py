"""The socket below a connection, in hand where the driver is stuck in it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from typing import Any

logger = logging.getLogger("django_perfectqueue.database")


class Wire:
    """
    A second handle on a connection's socket.

    Made by the thread that has the connection; the driver may refuse to tell others. Being
    a handle of its own, it never comes to mean another file when the driver closes its.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.socket = socket_of(connection)
        if self.socket is not None:
            weakref.finalize(self, self.socket.close)
        self.lock = threading.Lock()
        self.asked = False

    def ask(self) -> None:
        """
        Have the server break off what it does for this connection, without waiting for that.

        One that waits for a lock does not notice that its client has gone, and would stay
        with what it holds.
        """
        self.asked = True
        if hasattr(self.connection, "cancel"):
            threading.Thread(target=self.cancel, name="cancel", daemon=True).start()

    def cancel(self) -> None:
        try:
            self.connection.cancel()
        except Exception as error:
            logger.debug("A statement could not be cancelled. %s", type(error).__name__)

    def cut(self) -> None:
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
