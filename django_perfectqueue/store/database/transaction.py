"""One verb, one transaction; and again when the database asks for it, or was away."""

from __future__ import annotations

import functools
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from django_perfectqueue.exceptions import NotMigratedError

from .diagnosis import Ailment
from .dialects import Dialect, dialect_of

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("django_perfectqueue.database")

PATIENCE = 10.0
PATIENCE_OF_ONE_CALL = 1.0
REPEATS = 10
LONGEST_PAUSE = 0.5
LACKING = Ailment.UNMIGRATED


@contextmanager
def unit(using: str, *, apart: bool = False) -> Iterator[tuple[Any, Dialect]]:
    """
    Open one transaction, or join the caller's; yield a cursor and the dialect.

    A verb refuses before it writes, so a refusal leaves the caller's transaction good.
    One that is to be undone by itself asks to be ``apart``: in a savepoint, that is.
    """
    if connections[using].in_atomic_block:
        with transaction.atomic(using=using) if apart else nullcontext(), reading(using) as opened:
            yield opened
        return
    dialect = dialect_of(using)
    with (
        dialect.writing(connections[using]),
        dialect.committed(connections[using]),
        transaction.atomic(using=using),
        reading(using) as opened,
    ):
        yield opened


def timely(using: str) -> AbstractContextManager[tuple[Any, Dialect]]:
    """
    Open what a statement needs that writes a time from now.

    Where the clock is that of the host, it is read before the statement waits for whoever
    else is writing: so the lock has to come first.
    """
    return unit(using) if dialect_of(using).hosts_clock else reading(using)


@contextmanager
def together(*, using: str) -> Iterator[None]:
    """Let several verbs be one transaction, or one savepoint of the caller's."""
    with dialect_of(using).writing(connections[using]), transaction.atomic(using=using):
        yield


@contextmanager
def reading(using: str) -> Iterator[tuple[Any, Dialect]]:
    """Yield a cursor and the dialect, with no transaction of its own."""
    with connections[using].cursor() as cursor:
        yield cursor, dialect_of(using)


class Tries:
    """
    The tries of one call, and what each of them was about to commit.

    When the connection is lost, so may be the answer to a commit that went through. So a
    verb notes what it has done as the last thing before its commit, and a later try that
    finds its work done looks whether it was itself.
    """

    def __init__(self) -> None:
        self.doubtful: list[Any] = []

    def commits(self, note: Any) -> None:
        self.doubtful.append(note)


shared: ContextVar[dict[str, Tries] | None] = ContextVar("shared", default=None)


def one_call() -> Sharing:
    """
    Let all that is called in here, over and over, be tries of one call.

    For who waits for a lost database by other rules than PATIENCE: it is told at once, and
    soon of what is lost against others.
    """
    return Sharing({} if (known := shared.get()) is None else known)


def calls_of_others() -> Sharing:
    """Let what is called in here be calls like any other, though it is inside of one_call()."""
    return Sharing(None)


class Sharing:
    """What a generator would do, but entered around each task: so it has to be quick."""

    __slots__ = ("token", "tries")

    def __init__(self, tries: dict[str, Tries] | None) -> None:
        self.tries = tries

    def __enter__(self) -> None:
        self.token = shared.set(self.tries)

    def __exit__(self, *error: object) -> None:
        shared.reset(self.token)


def repeated(verb: Callable[P, R]) -> Callable[P, R]:
    """Repeat what does no harm if it is done twice, as patiently() does."""

    @functools.wraps(verb)
    def patient(*args: P.args, **kwargs: P.kwargs) -> R:
        return patiently(lambda: verb(*args, **kwargs), Tries(), using=str(kwargs["using"]))

    return patient


def recalled(verb: Callable[Concatenate[Tries, P], R]) -> Callable[P, R]:
    """Repeat a verb that must know what its earlier tries may have done."""

    @functools.wraps(verb)
    def patient(*args: P.args, **kwargs: P.kwargs) -> R:
        known = shared.get()
        tries = Tries() if known is None else known.setdefault(verb.__qualname__, Tries())
        act = functools.partial(verb, tries, *args, **kwargs)
        result = patiently(act, tries, using=str(kwargs["using"]))
        tries.doubtful.clear()
        return result

    return patient


def patiently(act: Callable[[], R], tries: Tries | None = None, *, using: str) -> R:
    """
    Repeat for up to PATIENCE seconds what lost against another transaction, or lost its
    connection.

    Once it is repeated in any case: a connection may have been dead for long. Inside a
    caller's transaction it is the caller's to repeat, and the error goes up. Raise
    NotMigratedError where a table or a column is missing.
    """
    try:
        return act() if is_callers(connections[using]) else insistently(act, tries, using=using)
    except Error as error:
        if isinstance(error, NotMigratedError) or ailment(error, using=using) != LACKING:
            raise
        raise unmigrated(error, using) from error.__cause__


def insistently(act: Callable[[], R], tries: Tries | None, *, using: str) -> R:
    trouble = Trouble(using, tries or Tries())
    for pause in pauses():
        known = len(trouble.tries.doubtful)
        try:
            return act()
        except Error as error:
            if not trouble.may_pass(error, known):
                raise
        time.sleep(pause)
    raise AssertionError("There is always another pause.")


def unmigrated(error: Error, using: str) -> NotMigratedError:
    command = "manage.py migrate" + ("" if using == DEFAULT_DB_ALIAS else f" --database {using}")
    why = str(error).partition("\n")[0]
    return NotMigratedError(f"The database '{using}' is not migrated ({why}). Run: {command}")


def ailment(error: Error, *, using: str) -> Ailment:
    """Return what ails a database, by what it or its driver has said."""
    if isinstance(error, NotMigratedError):
        return LACKING
    return dialect_of(using).ailment(error)


class Trouble:
    """The errors of one call."""

    def __init__(self, using: str, tries: Tries) -> None:
        self.using = using
        self.tries = tries
        self.shared = shared.get() is not None
        self.until = time.monotonic() + (PATIENCE_OF_ONE_CALL if self.shared else PATIENCE)
        self.repeats = 0
        self.told = False

    def may_pass(self, error: Error, known: int) -> bool:
        """Prepare for one more try, and tell whether there is to be one."""
        dialect = dialect_of(self.using)
        if dialect.passes(error):
            del self.tries.doubtful[known:]
        elif dialect.lost(error) and not self.shared:
            self.reconnect(error)
        else:
            return False
        self.repeats += 1
        once_more = self.repeats == 1 and not self.shared
        return once_more or time.monotonic() < self.until

    def reconnect(self, error: Error) -> None:
        drop(connections[self.using])
        if not self.told:
            self.told = True
            logger.warning(
                "The connection to the database is lost; trying again."
                " database=%s seconds=%.0f error=%s: %s",
                self.using,
                PATIENCE,
                type(error).__name__,
                " ".join(str(error).split()),
            )


def is_callers(connection: Any) -> bool:
    """Tell whether a transaction may be open that only the caller can repeat."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


def drop(connection: Any) -> None:
    """Close a connection, whether or not there is still someone at the other end."""
    try:
        connection.close()
    except Error:
        connection.connection = None


def pauses() -> Iterator[float]:
    """Yield what to wait before each repetition: ever longer, and never in step."""
    for repeat in itertools.count():
        longest = min(LONGEST_PAUSE, 0.005 * 2 ** min(repeat, 10))
        yield random.uniform(0.5, 1.5) * longest  # noqa: S311
