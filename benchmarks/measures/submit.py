"""Submit from one client: one task after the other, each in a commit of its own, or many."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.environment import Environment

WARM_UP, COUNT = 20, 2_000
MORE, MANY = 100, 10_000


def one_by_one(environment: Environment, variant: str) -> dict[str, Any]:
    environment.prepare(1)
    environment.checkpoint()
    for index in range(WARM_UP):
        environment.peer.submit(index)
    own, server, began = time.process_time(), environment.server_time(), time.monotonic()
    for index in range(WARM_UP, WARM_UP + COUNT):
        environment.peer.submit(index)
    seconds = time.monotonic() - began
    return {
        "n": COUNT,
        "rate": COUNT / seconds,
        "client_us": (time.process_time() - own) / COUNT * 1e6,
        **environment.server_us(server, COUNT),
    }


def many(environment: Environment, variant: str) -> dict[str, Any]:
    """Submit many tasks by the peer's own call for many."""
    environment.prepare(1)
    environment.checkpoint()
    environment.peer.submit_many(range(MANY, MANY + MORE))
    server, began = environment.server_time(), time.monotonic()
    environment.peer.submit_many(range(MANY))
    return {
        "n": MANY,
        "rate": MANY / (time.monotonic() - began),
        **environment.server_us(server, MANY),
        "whole": environment.peer.pending() == MANY + MORE,
    }
