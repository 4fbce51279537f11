"""Submit many tasks by the peer's own call for many, from one client."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.stand import Stand

VARIANTS = ("many",)


def measure(stand: Stand, variant: str) -> dict[str, Any]:
    count = stand.scale.bulk
    stand.prepare(1)
    stand.checkpoint()
    stand.peer.submit_many(range(count, count + 100))
    server, began = stand.server_time(), time.monotonic()
    stand.peer.submit_many(range(count))
    seconds = time.monotonic() - began
    return {
        "n": count,
        "rate": count / seconds,
        **stand.server_us(server, count),
        "whole": stand.peer.pending() == count + 100,
    }
