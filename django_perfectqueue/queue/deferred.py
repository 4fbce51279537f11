"""What settles a task in a transaction that has yet to be committed."""

from __future__ import annotations

from collections.abc import (
    Callable,
)
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from django.db import transaction

P = ParamSpec("P")

if TYPE_CHECKING:
    from .acquired import AcquiredTask


class Doubt:
    """Whether something that was written in a caller's transaction came to be."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.committed = False
        transaction.on_commit(self, using=connection.alias, robust=True)

    def __call__(self) -> None:
        self.committed = True

    def is_undone(self) -> bool:
        """Tell whether the transaction, or the savepoint that it was in, was rolled back."""
        if self.committed:
            return False
        waiting = list(self.connection.run_on_commit)
        return not any(function is self for _savepoints, function, *_robust in waiting)


@dataclass(slots=True)
class Deferred:
    """
    What an atomic handler has asked for, to be written with its effects when it has returned.

    To write it at once would lock the ticket for as long as the handler runs, and nobody
    could renew its lease.
    """

    acts: list[Callable[[], None]] = field(default_factory=list)
    settles: bool = False

    def now(self) -> Deferred:
        """Return what has been asked for until now."""
        return Deferred(list(self.acts), self.settles)

    def write(self) -> None:
        for act in self.acts:
            act()

    def clear(self) -> None:
        self.acts.clear()
        self.settles = False


def or_deferred(
    verb: Callable[Concatenate[AcquiredTask, P], None],
) -> Callable[Concatenate[AcquiredTask, P], None]:
    """Have a verb that settles a task do so when its handler returns, where that is atomic."""

    @wraps(verb)
    def now_or_then(self: AcquiredTask, /, *args: P.args, **kwargs: P.kwargs) -> None:
        deferred = self.deferred
        if deferred is None:
            return verb(self, *args, **kwargs)
        if deferred.settles:
            raise self._preempted()
        deferred.settles = True
        deferred.acts.append(partial(verb, self, *args, **kwargs))
        return None

    return now_or_then
