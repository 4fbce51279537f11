"""A transaction that a handler's writes share with the end of its task."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from typing import Any

from django.db import Error, connections, transaction

from ..database.dialects import dialect_of
from ..database.dialects.base import numbers
from ..database.transaction import reading, repeated, unit
from ..leases.fence import HELD
from ..values import Lease
from .finish import WRITTEN, mark_of
from .settle import CLOSED_BY, TRACE

ENDED = """
SELECT 1 FROM "perfectqueue_attempt"
WHERE "task_id" = %(task_id)s AND "number" = %(attempt)s AND "ending" <> 'lost'
"""

TRACELESS = ("released", "snoozed", "cancelled")
"""By what an attempt may end without a row of its own."""


class Joint:
    """
    Begun before the handler; committed or rolled back after it, once.

    Meanwhile it may stand still for as long as the handler may run, whatever the server has
    been told for others; but not from ``hasten()`` on, since it then has locks for which
    others wait. Inside of a transaction that is open already it is a savepoint.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self.dialect = dialect_of(using)
        self.connection = connections[using]
        self.open: ExitStack | None = None
        self.wire: Any = None
        self.is_outermost = True
        self.depth = 0
        self.patience: Any = None
        self.hooks: list[Any] = []

    @property
    def is_alone(self) -> bool:
        """Whether nobody else can write to this database meanwhile."""
        return self.open is not None and self.dialect.one_writer

    def begin(self, *, still: float | None) -> None:
        """Open it; it may stand still for so many seconds, or with None for ever."""
        self.is_outermost = not self.connection.in_atomic_block
        with ExitStack() as stack:
            with self.dialect.writing(self.connection):
                stack.enter_context(transaction.atomic(using=self.using))
            with self.connection.cursor() as cursor:
                self.patience = self.dialect.let_stand(cursor, still)
            self.wire = self.connection.connection
            self.depth = len(self.connection.atomic_blocks)
            self.open = stack.pop_all()

    def hasten(self) -> None:
        """Have the server be as impatient as before."""
        if self.patience is not None:
            patience, self.patience = self.patience, None
            with self.connection.cursor() as cursor:
                self.dialect.let_stand_as_before(cursor, patience)

    def check(self) -> None:
        """Raise TransactionManagementError where one within it is open: a commit would be none."""
        if len(self.connection.atomic_blocks) != self.depth:
            raise transaction.TransactionManagementError(
                "An atomic handler has left a transaction open that it had begun."
            )

    def commit(self) -> None:
        """Commit; what on_commit() was given waits for call_hooks()."""
        assert self.open is not None
        if self.is_outermost:
            self.hooks, self.connection.run_on_commit = self.connection.run_on_commit, []
        stack, self.open = self.open, None
        stack.close()

    def roll_back(self) -> None:
        """Undo everything, and close the connection where that can't be done."""
        if self.open is not None:
            stack, self.open = self.open, None
            with contextlib.suppress(Error):
                transaction.set_rollback(True, using=self.using)
                stack.close()
        if self.patience is not None and self.connection.connection is self.wire:
            with contextlib.suppress(Error):
                self.hasten()

    def abandon(self) -> None:
        """Think no more of it: the connection is going to be closed."""
        self.open = self.patience = None

    def call_hooks(self) -> None:
        """Call what on_commit() was given, when it has been committed."""
        if self.hooks:
            self.connection.run_on_commit, self.hooks = self.hooks, []
            self.connection.run_and_clear_commit_hooks()

    def was_cut_off(self, error: BaseException) -> bool:
        """Tell whether it was rolled back because its connection was lost."""
        gone = self.connection.connection is not self.wire
        return isinstance(error, Error) and gone and self.dialect.lost(error)

    def lost_a_race(self, error: BaseException) -> bool:
        """Tell whether another transaction was in its way, so that it may go well another time."""
        return isinstance(error, Error) and self.dialect.passes(error)


@repeated
def came_through(lease: Lease, word: str, *, using: str, worker: str) -> bool | None:
    """
    Tell whether a commit whose answer was lost has ended an attempt by this word.

    None where the attempt still holds its task, so that nothing was committed; False where
    others have ended it. A commit on which the server has yet to decide is waited for: it has
    the lock of the ticket.
    """
    values = {"task_id": lease.task_id, "attempt": lease.attempt, "token": lease.token}
    with unit(using) as (cursor, dialect):
        if dialect.execute(cursor, HELD + dialect.lock_clause(), values).fetchone():
            return None
    with reading(using) as (cursor, dialect):
        if word == "finished":
            statement = WRITTEN.replace("{ids}", numbers([lease.task_id]))
            rows = dialect.execute(cursor, statement).fetchall()
            return mark_of(lease, worker) in rows
        ended = bool(dialect.execute(cursor, ENDED, values).fetchone())
        if word not in TRACELESS:
            return ended
        if dialect.execute(cursor, TRACE, values).fetchone():
            return ended and word == "cancelled"
        outcome = "cancelled" if word == "cancelled" else "finished"
        closed = bool(dialect.execute(cursor, CLOSED_BY, values | {"outcome": outcome}).fetchone())
        return closed == (word == "cancelled")
