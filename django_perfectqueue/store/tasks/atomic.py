"""A transaction that a handler's writes share with the end of its task."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from typing import Any

from django.db import Error, connections, transaction

from ..database.dialects import dialect_of


class AtomicTransaction:
    """
    The transaction begins before the handler, and is committed or rolled back once after it.

    While the handler runs, the server's idle-in-transaction timeout is raised to the
    handler's time limit. ``hasten()`` restores it before the closing statements, which take
    locks that others need. Inside of a transaction that is open already it is a savepoint.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self.dialect = dialect_of(using)
        self.connection = connections[using]
        self.open: ExitStack | None = None
        self.wire: object = None
        self.is_outermost = True
        self.depth = 0
        self.idle_timeout: Any = None
        self.hooks: list[Any] = []

    @property
    def is_alone(self) -> bool:
        """Whether it keeps all others from writing to this database."""
        return self.open is not None and self.dialect.one_writer

    def begin(self, *, still: float | None) -> None:
        """Open it; it may be idle for ``still`` seconds, or with None for ever."""
        self.is_outermost = not self.connection.in_atomic_block
        with ExitStack() as stack:
            stack.enter_context(self.dialect.atomic(self.connection))
            with self.connection.cursor() as cursor:
                self.idle_timeout = self.dialect.set_idle_timeout(cursor, still)
            self.wire = self.connection.connection
            self.depth = len(self.connection.atomic_blocks)
            self.open = stack.pop_all()

    def hasten(self) -> None:
        """Restore the idle-in-transaction timeout of the server."""
        if self.idle_timeout is not None:
            idle_timeout, self.idle_timeout = self.idle_timeout, None
            with self.connection.cursor() as cursor:
                self.dialect.reset_idle_timeout(cursor, idle_timeout)

    def check(self) -> None:
        """Raise TransactionManagementError where a block within it is open: no commit would do."""
        if len(self.connection.atomic_blocks) != self.depth:
            raise transaction.TransactionManagementError(
                "An atomic handler has left a transaction open that it had begun."
            )

    def commit(self) -> None:
        """Commit; call_hooks() then calls what was given to on_commit()."""
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
        if self.idle_timeout is not None and self.connection.connection is self.wire:
            with contextlib.suppress(Error):
                self.hasten()

    def abandon(self) -> None:
        """Forget the transaction: the caller closes the connection."""
        self.open = self.idle_timeout = None

    def call_hooks(self) -> None:
        """Call what was given to on_commit(), after the commit."""
        if self.hooks:
            self.connection.run_on_commit, self.hooks = self.hooks, []
            self.connection.run_and_clear_commit_hooks()

    def was_cut_off(self, error: BaseException) -> bool:
        """Return whether it was rolled back because its connection was lost."""
        gone = self.connection.connection is not self.wire
        return isinstance(error, Error) and gone and self.dialect.lost(error)

    def lost_a_race(self, error: BaseException) -> bool:
        """Return whether it lost against another transaction, and may succeed when repeated."""
        return isinstance(error, Error) and self.dialect.passes(error)
