"""Submit one task after the other, each in a commit of its own, from one client."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.stand import Stand

VARIANTS = ("one",)
WARM_UP = 20


def measure(stand: Stand, variant: str) -> dict[str, Any]:
    count = stand.scale.submits
    stand.prepare(1)
    found = stand.peer.instead("submit", count, 1)
    if found:
        return found
    stand.checkpoint()
    for index in range(WARM_UP):
        stand.peer.submit(index)
    return timed(stand, WARM_UP, count)


def timed(stand: Stand, first: int, count: int) -> dict[str, Any]:
    own, server, began = time.process_time(), stand.server_time(), time.monotonic()
    for index in range(first, first + count):
        stand.peer.submit(index)
    seconds = time.monotonic() - began
    return {
        "n": count,
        "rate": count / seconds,
        "client_us": (time.process_time() - own) / count * 1e6,
        **stand.server_us(server, count),
    }
