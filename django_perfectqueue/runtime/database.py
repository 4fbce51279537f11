"""The database as a processor sees it: kept open, sometimes away."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.db import Error, connections
from django.db.backends.signals import connection_created

from django_perfectqueue import store

from .bell import Bell

R = TypeVar("R")

logger = logging.getLogger("django_perfectqueue.database")

SHORTEST, LONGEST = 0.1, 5.0


class AwayError(Exception):
    """The database is away, and there is no more time to wait for it."""


def close_for_fork() -> None:
    """Close every connection, and the pools behind them: none may be shared with a child."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if close_pool := getattr(connection, "close_pool", None):
            close_pool()


def end_idle_transactions(using: str, limit: float | None) -> None:
    """
    Have each connection that this process and its children make from now on lose its locks
    when it stands still in a transaction for so many seconds.
    """
    if limit is None:
        return

    def tell(connection: Any, **kwargs: object) -> None:
        if connection.alias == using:
            store.end_idle_transactions(connection, after=limit)

    connection_created.connect(tell, weak=False, dispatch_uid="perfectqueue.idle")


class Link:
    """
    One thread's way to the database, over which a verb is repeated until it is done.

    Only for verbs that may be repeated when the answer to their commit was lost. It waits
    instead of the store, for as long as it takes.
    """

    def __init__(self, using: str, bell: Bell, patience: Callable[[], float]) -> None:
        self.using = using
        self.bell = bell
        self.patience = patience
        self.away_since = 0.0
        self.waits = 0
        self.returned: Callable[[], None] = lambda: None

    def insist(self, verb: Callable[[], R]) -> R:
        """
        Call until it raises no database error.

        Raise AwayError when patience, in seconds since the trouble began, is at an end.
        """
        with store.one_call():
            while True:
                try:
                    return self.once(verb)
                except Error as error:
                    self.trouble(error)
                self.wait()

    def once(self, verb: Callable[[], R]) -> R:
        """Call it, and tell when that ends a time of trouble."""
        with store.one_call():
            if self.away_since:
                self.returned()
            result = verb()
        if self.away_since:
            self.back()
        return result

    def trouble(self, error: Error) -> None:
        discard(connections[self.using])
        if not self.away_since:
            self.away_since = time.monotonic()
            self.waits = 0
            logger.error(
                "The database is away; waiting for it. database=%s pid=%s error=%s: %s",
                self.using,
                os.getpid(),
                type(error).__name__,
                in_one_line(error),
            )

    def wait(self) -> None:
        if time.monotonic() - self.away_since >= self.patience():
            raise AwayError(f"The database '{self.using}' is away.")
        self.bell.wait(self.pause())

    def pause(self) -> float:
        """
        Return how long to wait for the next try: ever longer, and never in step.

        The first comes at once: the server may be there, and only the connection have been
        dead for long.
        """
        self.waits += 1
        if self.waits == 1:
            return 0.0
        longest = min(LONGEST, SHORTEST * 2.0 ** min(self.waits - 1, 10))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311

    def back(self) -> None:
        seconds = time.monotonic() - self.away_since
        self.away_since = 0.0
        logger.warning(
            "The database is back. database=%s pid=%s seconds=%.1f",
            self.using,
            os.getpid(),
            seconds,
        )


def in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


class Tidy:
    """Leaves a thread's connections as a handler should find them: open, in no transaction."""

    def __init__(self, left_alone: Iterable[Any] | None = None) -> None:
        open_now = (link for link in opened() if link.in_atomic_block)
        self.left_alone = set(open_now if left_alone is None else left_alone)

    def up(self, *, suspect: bool = False) -> None:
        """
        Roll back what a handler left open, and drop what may be broken.

        ``suspect`` is every connection after an interruption, which may have come in the
        middle of a statement.
        """
        for link in opened():
            if link in self.left_alone or link.connection is None:
                continue
            in_transaction = link.in_atomic_block or not is_autocommit(link)
            if suspect or in_transaction or link.errors_occurred:
                discard(link)


def opened() -> list[Any]:
    return list(connections.all(initialized_only=True))


def is_autocommit(link: Any) -> bool:
    return bool(link.autocommit) == bool(link.settings_dict["AUTOCOMMIT"])


def discard(link: Any) -> None:
    """Close a connection, in whatever state it is; the server rolls back what was open."""
    link.in_atomic_block = False
    link.closed_in_transaction = False
    link.needs_rollback = False
    link.savepoint_ids = []
    link.run_on_commit = []
    try:
        link.close()
    except Error:
        link.connection = None
