"""What the first tasks of users cost who have just come, as each holder has measured it."""

from __future__ import annotations

from collections import OrderedDict

MEMORY = 0.75
HOLDERS = 1_000

measured: OrderedDict[tuple[str, str, int], float] = OrderedDict()


def learn(using: str, queue: str, holder: int, seconds: float) -> None:
    """
    Add what a task has taken whose lane was charged ``expected()`` for it.

    The holder that is charged wrongly is the one that learns. So over any time its errors
    add up to ``1 / (1 - MEMORY)`` longest tasks at most, however many users come.
    """
    place = using, queue, holder
    known = measured.pop(place, seconds)
    measured[place] = known * MEMORY + seconds * (1 - MEMORY)
    while len(measured) > HOLDERS:
        measured.pop(next(iter(measured)), None)


def expected(using: str, queue: str, holder: int) -> float | None:
    """Return what a task of a user is expected to cost of whom nothing is known, in seconds."""
    return measured.get((using, queue, holder))
