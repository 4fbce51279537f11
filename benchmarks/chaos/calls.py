"""What anyone asks of the queue, and is answered: written down before, and after."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db import Error, InterfaceError, OperationalError, connection, transaction

from django_perfectqueue.exceptions import CancelRequestedError, PreemptedError, TaskError

from .recorder import recorder

DONE, REFUSED, BROKEN, UNDONE, STUMBLED = "done", "refused", "broken", "undone", "stumbled"
"""
Answers: BROKEN is an error of the connection, or an interruption, after which either may hold;
UNDONE a transaction that was rolled back; STUMBLED an error that no verb may raise.
"""
RECONNECTING = "The connection to the database is lost; trying again."

T = TypeVar("T")
Ref = tuple[int, int, int]
"""A lease: its task, its attempt and its holder."""


@dataclass(frozen=True)
class Call:
    """
    One use of a verb. ``answered`` is infinite and ``answer`` empty where none was written:
    who asked has died, or stood still until the end.
    """

    by: str
    verb: str
    asked: float
    answered: float = math.inf
    answer: str = ""
    given: dict[str, Any] = field(default_factory=dict)
    reported: dict[str, Any] = field(default_factory=dict)
    pid: int = 0

    @property
    def may_hold(self) -> bool:
        return self.answer in (DONE, BROKEN, STUMBLED, "")

    @property
    def is_done(self) -> bool:
        return self.answer == DONE

    @property
    def error(self) -> str:
        return str(self.reported.get("error", "")).partition(":")[0]

    @property
    def key(self) -> str:
        """The task, batch or edit that it is about."""
        return str(self.given.get("key", ""))

    @property
    def other(self) -> str:
        """Of a link the parent, of a bulk operation whose tasks it is about."""
        return str(self.given.get("other", ""))

    @property
    def refs(self) -> list[Ref]:
        """The leases that it names and that were not refused."""
        if self.answer == REFUSED:
            return []
        refused = refs(self.reported.get("refused", ()))
        return [ref for ref in refs(self.given.get("leases", ())) if ref not in refused]

    @property
    def refused(self) -> list[Ref]:
        if self.error == "PreemptedError" and self.answer == REFUSED:
            return refs(self.given.get("leases", ()))
        return refs(self.reported.get("refused", ())) if self.is_done else []

    @property
    def submitted(self) -> list[str]:
        """The names of the tasks that it submits: their keys, or those of their lives."""
        if "value" in self.reported:
            return [self.reported["value"]]
        tasks = (task["life"] for task in self.given.get("tasks", ()))
        dropped = self.given.get("dropped", ())
        found = [*self.given.get("keys", ()), *self.reported.get("keys", ())]
        return found + [life for life in tasks if life not in dropped]


def refs(lists: Sequence[Sequence[int]]) -> list[Ref]:
    return [(task, attempt, holder) for task, attempt, holder in lists]


class Undone(Exception):  # noqa: N818
    """Rolls back a transaction of who asks."""


@contextlib.contextmanager
def within(how: str, drawn: random.Random) -> Iterator[None]:
    """
    Be in a transaction of one's own, if ``how`` says one: it is open for a moment more, and is
    rolled back where it is "rolled back".
    """
    if not how:
        yield
        return
    with transaction.atomic():
        yield
        if drawn.random() < 0.3:
            time.sleep(drawn.uniform(0.0, 0.1))
        if how == "rolled back":
            raise Undone


class Reconnects(logging.Handler):
    """Sees whether a verb has lost its connection, and is repeated on another one."""

    own = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(RECONNECTING):
            self.own.seen = True


reconnects = Reconnects()


@contextlib.contextmanager
def noted(verb: str, **given: Any) -> Iterator[dict[str, Any]]:
    """Write down a call and its answer, with what is put into the dict meanwhile."""
    # Django's setup removes the handlers that were there before it.
    logging.getLogger("django_perfectqueue.database").addHandler(reconnects)
    own, answer = recorder(), DONE
    number, reported = own.ask(verb, given), dict[str, Any]()
    reconnects.own.seen = False
    try:
        yield reported
    except BaseException as error:
        answer = answer_of(error, given)
        reported["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        raise
    finally:
        if reconnects.own.seen:
            reported["reconnected"] = True
        own.answer(number, answer, reported)


def answer_of(error: BaseException, given: dict[str, Any]) -> str:
    if isinstance(error, Undone):
        return UNDONE
    if isinstance(error, CancelRequestedError) or not isinstance(error, Exception):
        return BROKEN
    if isinstance(error, PreemptedError) and "leases" not in given:
        return BROKEN
    if isinstance(error, TaskError):
        return REFUSED
    if not isinstance(error, Error):
        return STUMBLED
    # In a transaction of its own who asks goes on after the connection has broken.
    is_broken = given.get("how") or isinstance(error, (OperationalError, InterfaceError))
    # A promotion may take longer than a verb is repeated.
    is_standby = "read-only transaction" in str(error)
    return BROKEN if is_broken or is_standby else STUMBLED


def seen(look: Callable[[], T], default: T) -> T:
    """Return what is in the database, or the default where it does not answer."""
    try:
        return look()
    except Error:
        connection.close()
        return default


def ask(
    verb: str, act: Callable[[], Any], answers: dict[str, Any] | None = None, **given: Any
) -> Call:
    """
    Do something and write that down; return what became of it, and raise nothing.

    What ``act`` returns is reported where it is a dict; ``answers`` is also where it fails.
    """
    answer, reported = DONE, {} if answers is None else answers
    try:
        with noted(verb, **given) as found:
            try:
                value = act()
                reported.update(value if isinstance(value, dict) else {})
            finally:
                found.update(reported)
    except Exception as error:
        answer = answer_of(error, given)
        if answer in (BROKEN, STUMBLED) or isinstance(error, Error):
            connection.close()
    return Call("", verb, 0.0, answer=answer, given=given, reported=reported)
