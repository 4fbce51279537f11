"""One verb, one transaction, repeated where the database asks for it; and its session."""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import islice
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, OperationalError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue import models
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import NotMigratedError

from ..values import Now
from .dialects import Dialect, dialect_for, dialect_of
from .dialects.base import Problem, Row
from .dialects.packet import unanswered

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("django_perfectqueue.database")

PATIENCE = 10.0
PATIENCE_OF_ONE_CALL = 1.0
REPEATS = 10
LONGEST_PAUSE = 0.5
LACKING = Problem.UNMIGRATED
# SQLite unites 500 at most.
UNITED = 100
# More than 1000 in a list MariaDB takes for a table to join, and reads the whole other one.
LISTED = 500


@contextmanager
def in_transaction(using: str, *, now: Now = None, apart: bool = False) -> Iterator[Session]:
    """
    Open one transaction, or join the caller's; yield a session.

    A verb refuses before it writes, so a refusal leaves the caller's transaction good.
    One that is to be undone by itself asks to be ``apart``: in a savepoint, that is.
    """
    connection = connections[using]
    dialect = dialect_for(connection)
    block: AbstractContextManager[None] = nullcontext()
    if not connection.in_atomic_block:
        block = dialect.own(connection)
    elif apart:
        block = transaction.atomic(using)
    with block, connection.cursor() as cursor:
        yield Session(cursor, dialect, using, now)


def timely(using: str, *, now: Now = None) -> AbstractContextManager[Session]:
    """
    Open what a statement needs that writes a time from now.

    Where the clock is that of the host, it is read before the statement waits for another
    writer: so the lock has to come first.
    """
    session = in_transaction if dialect_of(using).hosts_clock else reading
    return session(using, now=now)


def together(*, using: str) -> AbstractContextManager[None]:
    """Run several verbs in one transaction, or in one savepoint of the caller's."""
    return dialect_of(using).atomic(connections[using])


@contextmanager
def reading(using: str, *, now: Now = None) -> Iterator[Session]:
    """Yield a session, with no transaction of its own."""
    connection = connections[using]
    with connection.cursor() as cursor:
        yield Session(cursor, dialect_for(connection), using, now)


# What each earlier try of one call was about to commit.
#
# When the connection is lost, so may be the answer to a commit that went through. So a
# verb notes what it has done as the last thing before its commit, and a later try that
# finds its work done looks whether it was itself.
Tries = list[Any]

shared: ContextVar[dict[str, Tries] | None] = ContextVar("shared", default=None)


def single_operation() -> SharedOperations:
    """
    Treat every store call in this block as a try of one operation.

    For callers with rules of their own: a lost connection is raised at once, and what lost
    against another transaction after PATIENCE_OF_ONE_CALL.
    """
    return SharedOperations({} if (known := shared.get()) is None else known)


def shared_operations() -> SharedOperations:
    """Treat the calls in this block each for itself, though inside of single_operation()."""
    return SharedOperations(None)


class SharedOperations:
    """What a generator would do, but entered around each task: so it has to be quick."""

    __slots__ = ("token", "tries")

    def __init__(self, tries: dict[str, Tries] | None) -> None:
        self.tries = tries

    def __enter__(self) -> None:
        self.token = shared.set(self.tries)

    def __exit__(self, *error: object) -> None:
        shared.reset(self.token)


def retry_transaction(verb: Callable[P, R]) -> Callable[P, R]:
    """Repeat what does no harm if it is done twice, as with_retries() does."""

    @functools.wraps(verb)
    def patient(*args: P.args, **kwargs: P.kwargs) -> R:
        return with_retries(lambda: verb(*args, **kwargs), using=str(kwargs["using"]))

    return patient


def retry_remembering_commits(verb: Callable[Concatenate[Tries, P], R]) -> Callable[P, R]:
    """Repeat a verb that must know what its earlier tries may have done."""

    @functools.wraps(verb)
    def patient(*args: P.args, **kwargs: P.kwargs) -> R:
        known = shared.get()
        tries = Tries() if known is None else known.setdefault(verb.__qualname__, Tries())
        act = functools.partial(verb, tries, *args, **kwargs)
        result = with_retries(act, tries, using=str(kwargs["using"]))
        tries.clear()
        return result

    return patient


def with_retries(act: Callable[[], R], tries: Tries | None = None, *, using: str) -> R:
    """
    Repeat for up to PATIENCE seconds what lost against another transaction, or lost its
    connection.

    Once it is repeated in any case: a connection may have been dead for long. Inside a
    caller's transaction it is the caller's to repeat, and the error goes up. Raise
    NotMigratedError where a table or a column is missing.
    """
    connection: Any = connections[using]
    callers, is_single = runs_in_callers(connection), shared.get() is not None
    until = time.monotonic() + (PATIENCE_OF_ONE_CALL if is_single else PATIENCE)
    tries = [] if tries is None else tries
    repeat = 0
    while True:
        known = len(tries)
        try:
            return act()
        except (Error, connection.Database.Error) as raised:
            error = as_djangos(raised)
            dialect = dialect_of(using)
            passes = dialect.passes(error)
            lost = not passes and not is_single and dialect.lost(error)
            in_time = time.monotonic() < until or (repeat == 0 and not is_single)
            if callers or not in_time or not (passes or lost):
                if isinstance(error, NotMigratedError) or problem_of(error, using=using) != LACKING:
                    raise error from error.__cause__
                why = str(error).partition("\n")[0]
                raise NotMigratedError(unmigrated(using, f" ({why})")) from error.__cause__
            if lost:
                reconnect(using, error, log=repeat == 0)
            else:
                del tries[known:]
        time.sleep(pause_before(repeat))
        repeat += 1


def pages(rows: Any, column: str, size: int, *, using: str) -> Iterator[list[Any]]:
    """
    Yield the values of a column in order, ``size`` at a time, each page by a statement of its own.

    A page begins behind the last value of the one before: the index may still have entries of rows
    that were deleted meanwhile.
    """
    rows = rows.order_by(column).values_list(column, flat=True)
    rest, page = rows, list[Any]()
    while page := with_retries(functools.partial(list, rest[:size]), using=using):
        yield page
        rest = rows.filter(**{f"{column}__gt": page[-1]})


def as_djangos(error: Exception) -> Error:
    """Return Django's error for one of a driver: MySQLdb's cursor raises its own in close()."""
    if isinstance(error, Error):
        return error
    wrapped = OperationalError(*error.args)
    wrapped.__cause__ = error
    return wrapped


def reconnect(using: str, error: Error, *, log: bool) -> None:
    drop(connections[using])
    if log:
        logger.warning(
            "The connection to the database is lost; trying again."
            " database=%s seconds=%.0f error=%s: %s",
            using,
            PATIENCE,
            type(error).__name__,
            " ".join(str(error).split()),
        )


def unmigrated(using: str, why: str = "") -> str:
    """Say that a database lacks tables or columns, and what to do."""
    command = "manage.py migrate" + ("" if using == DEFAULT_DB_ALIAS else f" --database {using}")
    return f"The database '{using}' is not migrated{why}. Run: {command}"


def problem_of(error: Error, *, using: str) -> Problem:
    """Return what ails a database, by what it or its driver has said."""
    if isinstance(error, NotMigratedError):
        return LACKING
    return dialect_of(using).problem_of(error)


def may_be_a_row(error: Exception, *, using: str) -> bool:
    """Return whether an error may come from what is in a row, and not from the database."""
    return dialect_of(using).problem_of(error) is Problem.OTHER


def is_callers(using: str) -> bool:
    """Return whether a transaction may be open that only the caller can repeat, and commit."""
    return runs_in_callers(connections[using])


def runs_in_callers(connection: BaseDatabaseWrapper) -> bool:
    """Do what is_callers() does, for those who have looked up the connection."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


def drop(connection: BaseDatabaseWrapper) -> None:
    """Close a connection, whether or not there is still someone at the other end."""
    try:
        connection.close()
    except Error:
        connection.connection = None


def pause_before(repeat: int) -> float:
    """Return what to wait before a repetition: ever longer, and never in step."""
    longest = min(LONGEST_PAUSE, 0.005 * 2.0 ** min(repeat, 10))
    return random.uniform(0.5, 1.5) * longest  # noqa: S311


# A cursor with the dialect of its database.


class Session(NamedTuple):
    """
    What a statement needs; what differs by vendor is asked of the dialect. ``using`` is the alias
    of the database, and ``now`` the time where the caller of the verb gives it.
    """

    cursor: Cursor
    dialect: Dialect
    using: str
    now: Now

    def execute(
        self,
        sql: str,
        parameters: Mapping[str, object] | None = None,
        *,
        after: Mapping[str, float | None] | None = None,
        **parts: str | Iterable[int] | Iterable[str],
    ) -> Cursor:
        """
        Run one statement, as Dialect.execute() does; return the cursor.

        ``parts`` come where the SQL names them in braces: a text as it is, which must be SQL; a
        list as the inside of an IN list.
        """
        for name, part in parts.items():
            if isinstance(part, str):
                sql = sql.replace(f"{{{name}}}", part)
            else:
                sql, texts = self.dialect.with_list(sql, name, part)
                parameters = {**(parameters or {}), **texts} if texts else parameters
        return self.dialect.execute(self.cursor, sql, parameters, now=self.now, after=after)

    @property
    def unanswered(self) -> Session:
        """The session for statements whose answers nobody needs: they go with the next one."""
        return Session(unanswered(self.cursor), self.dialect, self.using, self.now)

    def rows(
        self, sql: str, parameters: Mapping[str, object] | None = None, **others: Any
    ) -> list[Row]:
        """Run one statement, as execute() does; return the rows."""
        return list(self.execute(sql, parameters, **others).fetchall())

    def union(
        self, queries: Sequence[str], parameters: Mapping[str, object] | None = None, **others: Any
    ) -> list[Row]:
        """Return the rows of many queries, UNITED of them in one statement."""
        rows: list[Row] = []
        for first in range(0, len(queries), UNITED):
            statement = " UNION ALL ".join(queries[first : first + UNITED])
            rows += self.rows(statement, parameters, **others)
        return rows

    def of_each(
        self, query: str, ids: Collection[int], parameters: Mapping[str, object] | None = None
    ) -> list[Row]:
        """Return the rows of a query for each of these ids, for which it has ``{id}``."""
        if self.dialect.plans_laterally and ids:
            given = ", ".join([f"({id_})" for id_ in ids])
            query = f'(VALUES {given}) AS "given" ("id"), LATERAL ({query}) AS "each"'
            query = query.replace("{id}", '"given"."id"')
            return self.rows(f'SELECT "each".* FROM {query}', parameters)
        return self.union([query.replace("{id}", str(id_)) for id_ in ids], parameters)

    def rows_of(self, sql: str, name: str, ids: Iterable[int], **parameters: object) -> list[Row]:
        """Return the rows of a query whose IN list has this name, LISTED ids in one statement."""
        found: list[Row] = []
        rest = iter(ids)
        while some := list(islice(rest, LISTED)):
            found += self.rows(sql, parameters, **{name: some})
        return found


# Which database the tasks are in.


def database() -> str:
    """Return the alias of the database that holds the tasks: DATABASE, or else the router's."""
    return options().DATABASE or router.db_for_write(models.Task)


# What a server takes: how long a statement, and how long a transaction that stands still.


# In characters: below it no server is asked.
LONG = 256 * 1024


def too_long(text: str, *, using: str) -> str:
    """
    Say why the server would take no statement with this text, or nothing where it would.

    MySQL and MariaDB close the connection at it, which looks as if they were away: it would
    be tried again and again.
    """
    if len(text) <= LONG:
        return ""
    try:
        with reading(using) as db:
            return db.dialect.too_long(db.cursor, text)
    except Error as error:
        logger.debug("The server can't be asked for its largest statement. error=%s", error)
        return ""


def end_idle_transactions(connection: BaseDatabaseWrapper, *, after: float) -> None:
    """
    Make the server end a transaction that stands still for so many seconds.

    A process that is frozen, or whose host is cut off without a word, keeps the locks of
    the transaction that it is in: else until TCP gives the connection up, which may take
    hours. PostgreSQL and MariaDB can end it; a limit that the project has set stays.
    """
    with connection.cursor() as cursor:
        dialect_of(connection.alias).end_idle_transactions(cursor, after)
