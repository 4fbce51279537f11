"""Notifications on PostgreSQL: NOTIFY and LISTEN."""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
import time
from collections.abc import Collection, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..values import CHANNEL
from .datagrams import Notification, parsed

if TYPE_CHECKING:
    from _typeshed import HasFileno

# A connection of psycopg2 or psycopg 3, and what it notifies: neither need be installed.
Wire: TypeAlias = Any

NOTIFY = "SELECT pg_notify(%s, %s)"
ALL_AWAKE = """
WHERE (
    SELECT COUNT(*) FROM (
        SELECT 1 FROM "perfectqueue_account" WHERE "id" = ANY(%s) AND "has_waiting"
        UNION ALL SELECT 1 FROM "perfectqueue_lane" WHERE "id" = ANY(%s) AND "has_waiting"
    ) AS "awake"
) = %s
"""
PROOF = "proof"
AFTER_TROUBLE = 0.1

logger = logging.getLogger("django_perfectqueue.notify")


def send(message: str, connection: BaseDatabaseWrapper) -> None:
    """
    Notify all who listen, in a transaction of its own.

    In one that has written, NOTIFY would hold a lock of the whole server's until that is
    on disk, and let commits go only one by one.
    """
    with connection.cursor() as cursor:
        cursor.execute(NOTIFY, [CHANNEL, message])


def send_if_awake(message: str, lanes: Collection[int], connection: BaseDatabaseWrapper) -> bool:
    """Notify all who listen if all of these lanes are awake; return whether they are."""
    with connection.cursor() as cursor:
        ids = list(lanes)
        cursor.execute(NOTIFY + ALL_AWAKE, [CHANNEL, message, ids, ids, len(ids)])
        return cursor.fetchone() is not None


def apart(using: str) -> BaseDatabaseWrapper:
    """Return a new connection, outside any pool of Django's."""
    connection = connections.create_connection(using)
    given = connection.settings_dict["OPTIONS"]
    own = {name: value for name, value in given.items() if name != "pool"}
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": own}
    return connection


class ChannelListener:
    """
    Listens on some channels, over the connection of this thread.

    What others listen for on the same connection is left to them. It may turn out that
    nothing is ever heard: a pooler that lends out a connection for one transaction takes it
    away together with what was to be heard there. ``proven`` says that something was.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self.listening: Wire = None
        self.channels: frozenset[str] = frozenset()
        self.heard: list[str] = []
        self.token = ""
        self.proven = False

    @property
    def is_open(self) -> bool:
        return self.listening is not None and self.listening is connections[self.using].connection

    def hears(self, channels: Collection[str]) -> bool:
        """Return whether it listens on all these channels."""
        return self.is_open and self.channels.issuperset(channels)

    def open(self, channels: Collection[str] = (CHANNEL,)) -> None:
        """Listen on these channels alone. Raise what the database does."""
        self.close()
        self.proven = False
        self.channels = frozenset(channels)
        self.execute("LISTEN")
        self.listening = connections[self.using].connection
        if hasattr(self.listening, "add_notify_handler"):
            self.listening.add_notify_handler(self.note)

    def execute(self, verb: str) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.execute("; ".join(f"{verb} {channel}" for channel in sorted(self.channels)))

    def note(self, notice: Wire) -> None:
        if notice.channel in self.channels:
            self.heard.append(notice.payload)

    def prove(self) -> None:
        """Send, over another connection, what sets ``proven`` once it is heard."""
        self.token = secrets.token_hex(8)
        with closing(apart(self.using)) as connection:
            send(f"{PROOF} {self.token}", connection)

    def fileno(self) -> int:
        return int(self.listening.fileno())

    def read(self) -> Iterable[Notification]:
        """Return what has come, also during other statements. Raise what the database does."""
        with connections[self.using].wrap_database_errors:
            self.receive()
        heard = self.take()
        self.proven = self.proven or f"{PROOF} {self.token}" in heard
        return parsed(heard)

    def wait(self, seconds: float) -> None:
        """Wait for a notification, or so many seconds; less if the connection breaks."""
        deadline = time.monotonic() + seconds
        try:
            with connections[self.using].wrap_database_errors:
                while not self.take():
                    left = deadline - time.monotonic()
                    if left <= 0 or not is_readable(self.listening, left):
                        return
                    self.receive()
        except (Error, OSError, ValueError) as error:
            # Nothing else: a handler that waits here may be broken off.
            logger.debug("The connection that listens is broken. error=%s", error)
            time.sleep(min(AFTER_TROUBLE, max(0.0, deadline - time.monotonic())))

    def take(self) -> list[str]:
        """Return what came since the last call."""
        if not hasattr(self.listening, "add_notify_handler"):
            come = list(self.listening.notifies)
            for notice in come:
                self.note(notice)
            self.listening.notifies[:] = [one for one in come if one.channel not in self.channels]
        came, self.heard = self.heard, []
        return came

    def receive(self) -> None:
        """Read from the driver what has come, and hand each notification to its listener."""
        if not hasattr(self.listening, "add_notify_handler"):
            self.listening.poll()
            return
        pgconn = self.listening.pgconn
        pgconn.consume_input()
        for notice in iter(pgconn.notifies, None):
            pgconn.notify_handler(notice)

    def close(self) -> None:
        """Listen no more; the connection stays as it was."""
        if self.listening is not None and hasattr(self.listening, "remove_notify_handler"):
            self.listening.remove_notify_handler(self.note)
        if self.is_open:
            with contextlib.suppress(Error):
                self.execute("UNLISTEN")
                self.take()
        self.listening = None


def is_readable(source: HasFileno, seconds: float) -> bool:
    """Wait for something to come over a connection or a socket; return whether it has."""
    poll = select.poll()
    poll.register(source.fileno(), select.POLLIN)
    return bool(poll.poll(seconds * 1000))
