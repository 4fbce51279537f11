"""Submit from one client: one task after the other, each in a commit of its own, or many."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.environment import Environment

WARM_UP = 20
MORE = 100


def one_by_one(environment: Environment, variant: str) -> dict[str, Any]:
    count = environment.scale.submits
    environment.prepare(1)
    environment.checkpoint()
    for index in range(WARM_UP):
        environment.peer.submit(index)
    own, server, began = time.process_time(), environment.server_time(), time.monotonic()
    for index in range(WARM_UP, WARM_UP + count):
        environment.peer.submit(index)
    seconds = time.monotonic() - began
    return {
        "n": count,
        "rate": count / seconds,
        "client_us": (time.process_time() - own) / count * 1e6,
        **environment.server_us(server, count),
    }


def many(environment: Environment, variant: str) -> dict[str, Any]:
    """Submit many tasks by the peer's own call for many."""
    count = environment.scale.bulk
    environment.prepare(1)
    environment.checkpoint()
    environment.peer.submit_many(range(count, count + MORE))
    server, began = environment.server_time(), time.monotonic()
    environment.peer.submit_many(range(count))
    return {
        "n": count,
        "rate": count / (time.monotonic() - began),
        **environment.server_us(server, count),
        "whole": environment.peer.pending() == count + MORE,
    }
