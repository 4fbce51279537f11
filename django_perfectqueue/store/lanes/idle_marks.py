"""When to look again for what nobody has acted on, as lanes that sleep with work in them."""

from __future__ import annotations

import time
from collections import defaultdict

INTERVAL = 30.0
"""In seconds. Where a worker runs, its janitor looks every few seconds."""
EVENT_INTERVAL = 5.0
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


rounds: defaultdict[str, Rounds] = defaultdict(lambda: Rounds(INTERVAL))
event_rounds: defaultdict[str, Rounds] = defaultdict(lambda: Rounds(EVENT_INTERVAL))
