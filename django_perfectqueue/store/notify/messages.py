"""What a notification of a queue says, or a call of a holder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CALL = "call"
AT_REST = 5
"""How many times less often than each POLL_INTERVAL a worker at rest polls, at the most."""


@dataclass(frozen=True, slots=True)
class Ring:
    """
    In this queue a task may run in so many seconds; without a name, in some queue.

    As a message it is the seconds, a blank and the name. It orders nothing: who hears it
    looks for tasks, sooner than it would have done anyway.
    """

    queue: str
    delay: float = 0.0

    def message(self) -> str:
        return f"{self.delay:.3f} {self.queue}"


@dataclass(frozen=True, slots=True)
class Call:
    """
    There is news of what this holder has: someone wants it to stop, or has ended it.

    It orders nothing, either: who hears it asks the database, sooner than it would have.
    """

    holder: int

    def message(self) -> str:
        return f"{CALL} {self.holder}"


def parsed(messages: Iterable[str]) -> Iterator[Ring | Call]:
    """Yield the rings and calls among messages that anyone may have sent."""
    for message in messages:
        word, _blank, rest = message.partition(" ")
        try:
            yield Call(int(rest)) if word == CALL else Ring(rest, max(0.0, float(word)))
        except ValueError:
            continue
