"""How many tasks to take at once."""

from __future__ import annotations

SPAN = 0.25
LONG = 0.05
MOST = 200
GROWTH = 4
TOO_FAR = 1.5
MEMORY = 0.9
MOST_TYPES = 1_000


class Prefetch:
    """
    Takes what will run in about a quarter of a second, as measured by what has run.

    A processor that takes more keeps from others what they could be running. It begins
    with one, and grows step by step. ``places`` is how many it runs at once.
    """

    def __init__(self, fixed: int | None = None, *, places: int = 1) -> None:
        self.fixed = fixed
        self.places = places
        self.mean = 0.0
        self.means: dict[str, float] = {}
        self.last = 0

    def ran(self, type_: str, seconds: float) -> None:
        before = self.means.get(type_, seconds)
        if len(self.means) >= MOST_TYPES:
            self.means.clear()
        self.means[type_] = before * MEMORY + seconds * (1 - MEMORY)
        self.mean = self.mean * MEMORY + seconds * (1 - MEMORY) if self.mean else seconds

    def limit(self) -> int:
        """Return how many to have in hand, those that run among them; a step has been made."""
        self.last = self.next()
        return self.last

    def next(self) -> int:
        """Return what limit() would."""
        if self.fixed is not None:
            return self.fixed + self.places
        span = SPAN * self.places
        fitting = int(span / self.mean) if self.mean > span / MOST else MOST
        if not self.mean:
            fitting = self.places if self.places > 1 else MOST
        most = max(self.places, min(MOST, fitting))
        return max(1, min(most, self.last * GROWTH or 1))

    def is_over(self, seconds: float) -> bool:
        """
        Return whether a batch that began so long ago has taken far more than it was to take.

        So it is where tasks are suddenly longer than those before: what has not begun is
        then better taken anew, by whoever is free and in the order that holds by now.
        """
        return self.fixed is None and seconds > SPAN * TOO_FAR

    def over_at(self, began: float) -> float | None:
        """Return when that will be so of a batch that began at this moment, if ever."""
        return None if self.fixed is not None else began + SPAN * TOO_FAR

    def may_be_long(self, type_: str) -> bool:
        """Return whether finished tasks had better not wait for one of this type."""
        return self.means.get(type_, LONG) >= LONG
