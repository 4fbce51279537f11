"""What a ring of the bell says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


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


def parsed(messages: Iterable[str]) -> Iterator[Ring]:
    """Yield the rings among messages that anyone may have sent."""
    for message in messages:
        delay, _blank, queue = message.partition(" ")
        try:
            yield Ring(queue, max(0.0, float(delay)))
        except ValueError:
            continue
