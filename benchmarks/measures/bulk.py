"""Submit many tasks by the peer's own call for many, from one client."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.environment import Environment

VARIANTS = ("many",)


def measure(environment: Environment, variant: str) -> dict[str, Any]:
    count = environment.scale.bulk
    environment.prepare(1)
    environment.checkpoint()
    environment.peer.submit_many(range(count, count + 100))
    server, began = environment.server_time(), time.monotonic()
    environment.peer.submit_many(range(count))
    seconds = time.monotonic() - began
    return {
        "n": count,
        "rate": count / seconds,
        **environment.server_us(server, count),
        "whole": environment.peer.pending() == count + 100,
    }
