"""What a notification says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

CALL = "call"
AT_REST = 5
"""How many times less often than each POLL_INTERVAL a worker at rest polls, at the most."""


class Notification(NamedTuple):
    """
    In this queue a task may run in so many seconds; without a name, in some queue.

    With a ``holder`` there is news of what this holder has: someone wants it to stop, or has
    ended it. It orders nothing: who hears it asks the database, sooner than it would have
    done anyway. As a message it is the seconds, a blank and the name, or CALL and the holder.
    """

    queue: str = ""
    delay: float = 0.0
    holder: int | None = None

    @property
    def message(self) -> str:
        if self.holder is not None:
            return f"{CALL} {self.holder}"
        return f"{self.delay:.3f} {self.queue}"


def parsed(messages: Iterable[str]) -> Iterator[Notification]:
    """Yield the notifications among messages that anyone may have sent."""
    for message in messages:
        word, _blank, rest = message.partition(" ")
        try:
            if word == CALL:
                yield Notification(holder=int(rest))
            else:
                yield Notification(rest, max(0.0, float(word)))
        except ValueError:
            continue
