"""How many tasks to take at once."""

from __future__ import annotations

SPAN = 0.25
LONG = 0.05
MOST = 200
GROWTH = 4
TOO_FAR = 1.5
MEMORY = 0.9


class Pace:
    """
    Takes what will run in about a quarter of a second, as measured by what has run.

    A processor that takes more keeps from others what they could be running. It begins
    with one, and grows step by step.
    """

    def __init__(self, prefetch: int | None = None) -> None:
        self.prefetch = prefetch
        self.mean = 0.0
        self.means: dict[str, float] = {}
        self.last = 0

    def ran(self, type_: str, seconds: float) -> None:
        before = self.means.get(type_, seconds)
        self.means[type_] = before * MEMORY + seconds * (1 - MEMORY)
        self.mean = self.mean * MEMORY + seconds * (1 - MEMORY) if self.mean else seconds

    def limit(self) -> int:
        if self.prefetch is not None:
            return self.prefetch + 1
        fitting = int(SPAN / self.mean) if self.mean > SPAN / MOST else MOST
        self.last = max(1, min(MOST, fitting, self.last * GROWTH or 1))
        return self.last

    def is_over(self, seconds: float) -> bool:
        """
        Tell whether a batch that began so long ago has taken far more than it was to take.

        So it is where tasks are suddenly longer than those before: what has not begun is
        then better taken anew, by whoever is free and in the order that holds by now.
        """
        return self.prefetch is None and seconds > SPAN * TOO_FAR

    def may_be_long(self, type_: str) -> bool:
        """Tell whether finished tasks had better not wait for one of this type."""
        return self.means.get(type_, LONG) >= LONG
