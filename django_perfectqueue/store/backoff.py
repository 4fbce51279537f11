"""How long to wait before a task is tried again."""

from __future__ import annotations

MOST_DOUBLINGS = 60


def next_wait(tries: int, *, first: float, longest: float, chance: float = 0.5) -> float:
    """
    Return the seconds to wait after so many tries: doubling from ``first``, up to ``longest``.

    ``chance``, from 0 to 1, spreads them by a quarter to both sides, so that what failed
    together is not tried again together.
    """
    wait = first * 2.0 ** min(max(tries, 1) - 1, MOST_DOUBLINGS)
    return min(longest, min(longest, wait) * (0.75 + 0.5 * chance))
