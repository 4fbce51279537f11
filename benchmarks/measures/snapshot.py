"""
Drain while another session keeps an old snapshot, so that no dead row can be removed.

``free`` is the same drain without that session.
"""

from __future__ import annotations

import contextlib
from typing import Any

from benchmarks.database import Target, connect
from benchmarks.environment import Environment

from .drain import drained

VARIANTS = ("free", "held")
OPEN = {
    "postgresql": ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT txid_current()"),
    "mariadb": (
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    ),
    "sqlite": ("BEGIN", "SELECT count(*) FROM sqlite_master"),
}
LONGER = 2


def measure(environment: Environment, variant: str) -> dict[str, Any]:
    environment.prepare(1)
    count = environment.size(environment.scale.tasks) * LONGER
    environment.checkpoint()
    environment.peer.fill(count)
    environment.analyze()
    with contextlib.ExitStack() as held:
        if variant == "held":
            held.enter_context(snapshot(environment.target))
        return drained(environment, 1, count)


@contextlib.contextmanager
def snapshot(target: Target) -> Any:
    link = connect(target)
    for statement in OPEN[target.kind]:
        link.run(statement)
    try:
        yield
    finally:
        link.close()
