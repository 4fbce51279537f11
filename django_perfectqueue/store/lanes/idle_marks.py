"""Which lanes this process has put to sleep lately, and when to look for all that sleep."""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable

LATELY = 60.0
MOST = 500
PART = 100


class Rounds:
    """When to look again: after so many seconds, or where a look takes long so seldom that it
    takes a hundredth of the time."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.next_at = float("-inf")

    def are_due(self) -> bool:
        return time.monotonic() >= self.next_at

    def began(self, at: float) -> None:
        """Note that a look which began then has ended."""
        now = time.monotonic()
        self.next_at = now + max(self.interval, PART * (now - at))


rounds: defaultdict[str, Rounds] = defaultdict(lambda: Rounds(LATELY))
slept: defaultdict[str, OrderedDict[int, float]] = defaultdict(OrderedDict)


def put_to_sleep(using: str, lanes: Iterable[int]) -> None:
    """Note lanes that this process has put to sleep; of very many the last ones."""
    known, now = slept[using], time.monotonic()
    for lane in lanes:
        known[lane] = now
        known.move_to_end(lane)
    while len(known) > MOST:
        known.popitem(last=False)


def slept_lately(using: str) -> list[int]:
    """Return the lanes that this process has put to sleep within LATELY."""
    known, since = slept[using], time.monotonic() - LATELY
    while known and next(iter(known.values())) < since:
        known.popitem(last=False)
    return sorted(known)
