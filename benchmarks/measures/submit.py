"""Submit one task after the other, each in a commit of its own, from one client."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.environment import Environment

VARIANTS = ("one",)
WARM_UP = 20


def measure(environment: Environment, variant: str) -> dict[str, Any]:
    count = environment.scale.submits
    environment.prepare(1)
    found = environment.peer.instead("submit", count, 1)
    if found:
        return found
    environment.checkpoint()
    for index in range(WARM_UP):
        environment.peer.submit(index)
    return timed(environment, WARM_UP, count)


def timed(environment: Environment, first: int, count: int) -> dict[str, Any]:
    own, server, began = time.process_time(), environment.server_time(), time.monotonic()
    for index in range(first, first + count):
        environment.peer.submit(index)
    seconds = time.monotonic() - began
    return {
        "n": count,
        "rate": count / seconds,
        "client_us": (time.process_time() - own) / count * 1e6,
        **environment.server_us(server, count),
    }
