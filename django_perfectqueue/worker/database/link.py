"""The database as a processor sees it: how it connects, kept open, watched, sometimes away."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_perfectqueue import store
from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.payload.context import STARS
from django_perfectqueue.store.database.transaction import drop

from ..process.signals import Wakeup
from ..shared.status import Outage
from .sessions import SessionWatch, SocketHandle, has_tenant, renew, socket_of

R = TypeVar("R")

logger = logging.getLogger("django_perfectqueue.database")

SHORTEST, LONGEST = 0.1, 1.0
LONGEST_FOR_A_PERSON = 5.0
A_MINUTE = 60.0

OPENED = "perfectqueue_opened"


class AwayError(Exception):
    """The database is away, and there is no more time to wait for it."""


def prepare_for_fork() -> None:
    """
    Close all connections, which a child must not share, and take psycopg's pools out of the
    settings: the threads of a processor keep their connections, and would starve a pool.
    """
    for connection in connections.all(initialized_only=True):
        connection.close()
        if close_pool := getattr(connection, "close_pool", None):
            close_pool()
    for entry in connections.settings.values():
        entry["OPTIONS"].pop("pool", None)


class Link:
    """
    One thread's access to the database, which repeats a call until it succeeds.

    Only for calls that may be repeated when the answer to their commit was lost. The retries
    of the link replace those of the store. Links that share an ``outage`` log it once.
    """

    def __init__(
        self,
        using: str,
        wakeup: Wakeup,
        patience: Callable[[], float],
        *,
        outage: Outage | None = None,
    ) -> None:
        self.using = using
        self.wakeup = wakeup
        self.patience = patience
        self.outage = Outage() if outage is None else outage
        self.connected_after = self.outage.reconnect_at.value
        self.away_since = 0.0
        self.repeated_at: float | None = None
        self.waits = 0
        self.what = store.database.Problem.UNREACHABLE
        self.error_text = ""
        self.calling_since = 0.0
        self.socket_handle: SocketHandle | None = None
        self.silent = False
        self.unanswered = False
        self.returned: Callable[[], None] = lambda: None

    def retry_until_done(self, verb: Callable[[], R]) -> R:
        """
        Repeat a call until it raises no database error.

        Raise AwayError ``patience()`` seconds after the first error.
        """
        with store.database.single_operation():
            while True:
                try:
                    return self.once(verb)
                except Error as error:
                    self.trouble(error)
                if time.monotonic() - self.away_since >= self.patience():
                    raise AwayError(f"The database '{self.using}' is away.")
                self.wakeup.wait(self.pause())

    def once(self, verb: Callable[[], R]) -> R:
        """Call once, and log if this ends an outage."""
        try:
            result = self.call(verb)
        except PreemptedError:
            # The database has answered: the outage is over.
            self.answered()
            raise
        self.answered()
        return result

    def call(self, verb: Callable[[], R]) -> R:
        """Call once; after an error, first ask what has become of earlier calls."""
        outer = self.calling_since
        self.calling_since = time.monotonic()
        try:
            with store.database.single_operation():
                self.connect()
                if self.unanswered:
                    self.returned()
                    self.unanswered = False
                return verb()
        finally:
            self.calling_since = time.monotonic() if outer else 0.0

    def try_once(self, act: Callable[[], object], what: str) -> None:
        """Write something optional: log a database error instead of raising it."""
        try:
            self.once(act)
        except Error as error:
            discard(connections[self.using])
            level = logging.DEBUG if self.problem_of(error).passes else logging.WARNING
            self.log(level, f"{what} can't be written; tasks go on.", error=self.in_one_line(error))

    def connect(self) -> None:
        """Open a connection, replace an outdated one, and duplicate its socket."""
        connection = connections[self.using]
        reconnect_at = self.outage.reconnect_at.value
        if self.connected_after != reconnect_at and not connection.in_atomic_block:
            self.connected_after = reconnect_at
            discard(connection)
        if connection.connection is None:
            connection.ensure_connection()
        if self.socket_handle is None or self.socket_handle.connection is not connection.connection:
            self.close_handle()
            self.socket_handle = SocketHandle(connection.connection, self.using)
        self.socket_handle.cancel_sent = False

    def close_handle(self) -> None:
        if self.socket_handle is not None:
            self.socket_handle.close()
        self.socket_handle = None

    def trouble(self, error: Error) -> None:
        """Drop the connection, and log the error unless it is known."""
        self.what = self.problem_of(error)
        self.error_text = self.in_one_line(error)
        self.unanswered = True
        self.close_handle()
        discard(connections[self.using])
        self.outage.enter(id(self))
        if not self.away_since:
            self.away_since = time.monotonic()
            self.waits = 0
        # The first error in a row may come from a stale connection.
        still = "still " if self.outage.is_on and self.what.passes else ""
        is_news = self.waits > 0 and self.outage.is_news(self.what, self.away_since)
        lead = f"is {still}away" if self.what.passes else "can't be used"
        self.log(
            logging.ERROR if is_news else logging.DEBUG,
            f"The database {lead}: {self.what.words}. Tasks are kept; the worker keeps retrying.",
            seconds=f"{time.monotonic() - self.away_since:.0f}",
            error=self.error_text,
        )

    def problem_of(self, error: Error) -> store.database.Problem:
        silent, self.silent = self.silent, False
        return (
            store.database.Problem.SILENT
            if silent
            else store.database.problem_of(error, using=self.using)
        )

    def pause(self) -> float:
        """
        Return the pause before the next try: exponential backoff with jitter.

        The first retry comes at once, as only the connection may have been stale. The limit
        of one second bounds the delay after an outage. Errors that an operator must fix have
        a limit of five seconds.
        """
        self.waits += 1
        if self.waits == 1:
            return 0.0
        most = LONGEST if self.what.passes else LONGEST_FOR_A_PERSON
        longest = min(most, SHORTEST * 2.0 ** min(self.waits - 1, 10))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311

    def answered(self) -> None:
        """End an outage, if there is one; log that, or that a call had to be repeated."""
        if not self.away_since:
            return
        seconds = self.outage.leave(id(self))
        self.away_since = 0.0
        if seconds is not None:
            self.log(logging.WARNING, "The database is back.", seconds=f"{seconds:.1f}")
            return
        # Once a minute: a pooler may break every call.
        is_news = self.repeated_at is None or time.monotonic() >= self.repeated_at + A_MINUTE
        if is_news:
            self.repeated_at = time.monotonic()
        text = f"A call to the database failed and was repeated: {self.what.words}."
        self.log(logging.INFO if is_news else logging.DEBUG, text, error=self.error_text)

    def log(self, level: int, text: str, **values: str) -> None:
        """Log a sentence with the names of the database and of this process."""
        names = {"database": self.using, "process": self.outage.process, "pid": os.getpid()}
        pairs = [f"{name}={value}" for name, value in {**names, **values}.items()]
        logger.log(level, "%s %s", text, " ".join(pairs))

    def in_one_line(self, error: BaseException) -> str:
        """Return the class and the message of an error in one line, without the password."""
        password = str(connections[self.using].settings_dict["PASSWORD"] or "")
        text = " ".join([f"{type(error).__name__}:", *str(error).split()])
        return text.replace(password, STARS) if password else text


class ConnectionCleanup:
    """
    Resets the connections of the thread that makes it after a handler.

    No transaction stays open, and the session is as new: what was set in it is gone. With
    django-tenants, a connection has the tenant again that it had when this was made.
    """

    def __init__(self) -> None:
        self.left_alone = {link for link in mine.links if link.in_atomic_block}
        every: list[Any] = list(connections.all())
        self.tenants = {link: link.tenant for link in every if has_tenant(link)}

    def run(self, *, suspect: bool = False) -> None:
        """
        Close connections with an open transaction or an error; the server rolls back.

        With ``suspect``, close all: an interruption may have hit a statement in progress.
        """
        if self.tenants:
            self.restore_tenants()
        for link in mine.links:
            if link.connection is None or link in self.left_alone:
                continue
            manual = bool(link.autocommit) != bool(link.settings_dict["AUTOCOMMIT"])
            in_transaction = link.in_atomic_block or manual
            is_spoilt = suspect or in_transaction or link.errors_occurred
            is_changed = link in mine.watch.changed
            if is_spoilt or (is_changed and not renew(link)):
                discard(link)
            if is_changed:
                mine.watch.changed.discard(link)

    def check(self, *, suspect: bool) -> None:
        """Close connections that do not answer; with ``suspect``, close all."""
        for link in mine.links:
            if link.connection is None or link in self.left_alone:
                continue
            if suspect or not link.is_usable():
                discard(link)

    def restore_tenants(self) -> None:
        """Give connections of django-tenants the tenants of before the handler."""
        for link, tenant in self.tenants.items():
            if link.tenant is not tenant and link not in self.left_alone:
                link.set_tenant(tenant)


class OpenConnections(threading.local):
    """The connections that a thread has opened; cheaper than ``connections.all()``."""

    def __init__(self) -> None:
        self.links: list[BaseDatabaseWrapper] = list(connections.all(initialized_only=True))
        self.watch = SessionWatch()
        for link in self.links:
            self.watch.begin(link)


mine = OpenConnections()


def note_opened(*, connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    if connection not in mine.links:
        mine.links.append(connection)
    mine.watch.begin(connection)


def note_opened_last() -> None:
    """Note connections after other receivers have set what they want of a new session."""
    connection_created.disconnect(dispatch_uid=OPENED)
    connection_created.connect(note_opened, dispatch_uid=OPENED)


note_opened_last()


def discard(link: BaseDatabaseWrapper) -> None:
    """Close a connection in any state; the server rolls back its transaction."""
    link.in_atomic_block = False
    link.closed_in_transaction = False
    link.needs_rollback = False
    link.savepoint_ids = []
    link.run_on_commit = []
    drop(link)


# Connection settings of a worker: a connect timeout and TCP keepalives.


FEW = 16
CONNECT_TIMEOUT = 5
PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
ID, IDLE_ID = "perfectqueue.keepalive", "perfectqueue.idle"


def prepare(using: str, *, idle_limit: float | None = None) -> None:
    """
    Set defaults for this process and its forks; settings of the project stay.

    The server ends transactions that are idle for ``idle_limit`` seconds.
    """
    entry = connections[using].settings_dict
    elsewhere = "service" in entry["OPTIONS"] or "PGCONNECT_TIMEOUT" in os.environ
    if connections[using].vendor != "sqlite" and not elsewhere:
        entry["OPTIONS"].setdefault("connect_timeout", CONNECT_TIMEOUT)
    connection_created.connect(keep_alive, dispatch_uid=ID)
    if idle_limit is not None:
        end_idle_transactions(using, idle_limit)
    note_opened_last()


def keep_few_statements(using: str) -> None:
    """
    Have SQLite's driver keep fewer prepared statements from the next connection on.

    It keeps 128, of which those of a helper take 80 KB each and are seldom repeated.
    """
    if connections[using].vendor == "sqlite":
        connections[using].settings_dict["OPTIONS"].setdefault("cached_statements", FEW)


def end_idle_transactions(using: str, limit: float) -> None:
    """Set the idle-in-transaction timeout on each connection opened from now on."""

    def set_limit(connection: BaseDatabaseWrapper, **kwargs: object) -> None:
        if connection.alias == using:
            store.database.end_idle_transactions(connection, after=limit)

    connection_created.connect(set_limit, weak=False, dispatch_uid=IDLE_ID)


def keep_alive(sender: object, connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    """
    Set TCP keepalives that detect a dead peer within a minute.

    The system's default is two hours, for which a handler's query would wait. Settings of
    the project stay.
    """
    given = connection.settings_dict["OPTIONS"]
    if any(name.startswith(("keepalives", "tcp_user")) or name == "service" for name in given):
        return
    peer = socket_of(connection.connection)
    if peer is None:
        return
    with peer:
        if peer.family in (socket.AF_INET, socket.AF_INET6):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in PROBES.items():
                if hasattr(socket, name):
                    peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# Break off database calls that get no answer.


GRACE = 2.0
LEAST = 5.0


class Watchdog:
    """
    Checks from another thread how long each link has waited for an answer.

    After ``timeout`` seconds it cancels the wait for a lock; two seconds later it shuts the
    socket down. Otherwise a link would wait forever for a network that drops packets or for
    a server that hangs. A link with less patience, as at a stop, gets less time.
    """

    def __init__(self, links: Sequence[Link], timeout: float | None) -> None:
        self.links = list(links)
        self.timeout = timeout

    def look(self, now: float) -> None:
        if self.timeout is None:
            return
        for link in self.links:
            since, socket_handle = link.calling_since, link.socket_handle
            if not since or socket_handle is None:
                continue
            late = now - since - min(self.timeout, max(LEAST, link.patience()))
            if late >= 0.0:
                link.silent = True
                if not socket_handle.cancel_sent:
                    socket_handle.cancel_query()
                elif late >= min(GRACE, self.timeout):
                    socket_handle.shutdown()
