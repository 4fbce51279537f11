"""What settles a task in a transaction that has yet to be committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import transaction
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


@dataclass(slots=True, eq=False)
class Act:
    """
    Something to be done, as long as the transaction in which that was asked for stands.

    ``word`` is what it settles the task as, or empty.
    """

    do: Callable[[], None]
    word: str

    def __call__(self) -> None:
        """Do nothing: an act that waits for the commit was not rolled back."""


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
        act = Act(do, word)
        self.connection.on_commit(act, robust=True)
        self.acts.append(act)

    def pending(self) -> list[Act]:
        """Return what was not rolled back."""
        waiting = {id(hook[1]) for hook in self.connection.run_on_commit}
        return [act for act in self.acts if id(act) in waiting]

    def write(self) -> None:
        for act in self.pending():
            act.do()
