"""What a handler leaves in a session, and how a blocked call is broken off by its socket."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_perfectqueue.lib.running import running
from django_perfectqueue.store.notify.postgres import apart

if TYPE_CHECKING:
    from _typeshed import HasFileno


MARK = "/* perfectqueue */"
OWN = "perfectqueue_"
WORDS = "select insert update delete with merge replace values table copy explain show fetch"
FRAMES = "savepoint release rollback begin start commit"
PASSING = (
    *(WORDS + " " + FRAMES).split(),
    *("set local ", "set transaction ", "set constraints ", "set statement "),
)
LASTING = ("set_config", "advisory_lock", "get_lock", "into temp")
VARIABLE_OR_SECOND = re.compile(r"(?<!@)@\w|;\s*\w")
HARMLESS_CALLS = ("pg_notify", "timestamp", "now(")
# DISCARD ALL without what the driver and the store have prepared.
AS_NEW = (
    "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; UNLISTEN *;"
    " SELECT pg_advisory_unlock_all(); DISCARD SEQUENCES; DISCARD TEMP"
)


def lasts(sql: object) -> bool:
    """Return whether a statement may change its session beyond its transaction."""
    text = str(sql).lower()
    if text.lstrip().startswith(MARK):
        return False
    if not text.lstrip(" \n(").startswith(PASSING) or any(word in text for word in LASTING):
        return True
    if OWN in text:
        return False
    if ("@" in text or ";" in text) and VARIABLE_OR_SECOND.search(text):
        return True
    # A function of the project may set anything.
    is_call = "(" in text and text.lstrip().startswith("select") and "from" not in text
    return is_call and not any(call in text for call in HARMLESS_CALLS)


class SessionWatch:
    """An execute wrapper that notes the connections whose session a handler may have changed."""

    def __init__(self) -> None:
        self.changed: set[BaseDatabaseWrapper] = set()

    def __call__(
        self,
        execute: Callable[..., object],
        sql: object,
        params: object,
        many: bool,
        context: Mapping[str, BaseDatabaseWrapper],
    ) -> object:
        if running.get() is not None and lasts(sql):
            link = context["connection"]
            # django-tenants sends this for each cursor, by what the connection knows.
            if not (has_tenant(link) and str(sql).startswith("SET search_path")):
                self.changed.add(link)
        return execute(sql, params, many, context)

    def begin(self, link: BaseDatabaseWrapper) -> None:
        """Watch a connection that was just opened."""
        self.changed.discard(link)
        if self not in link.execute_wrappers:
            link.execute_wrappers.insert(0, self)


def has_tenant(link: BaseDatabaseWrapper) -> bool:
    """Return whether a connection is one of django-tenants, which knows its schema."""
    return hasattr(link, "set_tenant")


def renew(link: BaseDatabaseWrapper) -> bool:
    """Make a session as new by one statement, and return True; where that can't be, False."""
    if link.vendor != "postgresql" or has_tenant(link) or not link.autocommit:
        return False
    try:
        with link.connection.cursor() as cursor:
            cursor.execute(AS_NEW)
        link.init_connection_state()
        connection_created.send(sender=type(link), connection=link)
    except Exception:
        return False
    return True


# Break off a blocked database call from another thread, through its socket.


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
