"""What settles a task in a transaction that has yet to be committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper


class MaybeCommitted:
    """Whether something that was written in a caller's transaction came to be."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.committed = False
        transaction.on_commit(self, using=connection.alias, robust=True)

    def __call__(self) -> None:
        self.committed = True

    def is_undone(self) -> bool:
        """Return whether the transaction, or the savepoint that it was in, was rolled back."""
        if self.committed:
            return False
        return not any(hook[1] is self for hook in list(self.connection.run_on_commit))


def maybe_committed(using: str) -> MaybeCommitted | None:
    """Return whether what was just written comes to be; None where it is committed already."""
    connection = connections[using]
    return MaybeCommitted(connection) if connection.in_atomic_block else None


class Act(MaybeCommitted):
    """
    Something to be done, as long as the transaction in which that was asked for stands.

    ``word`` is what it settles the task as, or empty.
    """

    def __init__(self, connection: BaseDatabaseWrapper, do: Callable[[], None], word: str) -> None:
        super().__init__(connection)
        self.do = do
        self.word = word


@dataclass(slots=True)
class Deferred:
    """
    What an atomic handler has asked for, to be written with its effects when it has returned.

    To write it at once would lock the ticket for as long as the handler runs, and nobody
    could renew its lease. What was asked for in a savepoint goes back with that.
    """

    connection: BaseDatabaseWrapper
    acts: list[Act] = field(default_factory=list)

    @property
    def settled(self) -> str:
        """What it settles the task as; nothing where it does not."""
        return next((act.word for act in self.pending() if act.word), "")

    def add(self, do: Callable[[], None], *, word: str = "") -> None:
        self.acts.append(Act(self.connection, do, word))

    def pending(self) -> list[Act]:
        """Return what was not rolled back."""
        return [act for act in self.acts if not act.is_undone()]

    def write(self) -> None:
        for act in self.pending():
            act.do()
