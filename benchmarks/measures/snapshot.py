"""
Drain while another session keeps an old snapshot, so that no dead row can be removed.

``free`` is the same drain without that session.
"""

from __future__ import annotations

import contextlib
from typing import Any

from benchmarks.driver import connect
from benchmarks.place import Place
from benchmarks.stand import Stand

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


def measure(stand: Stand, variant: str) -> dict[str, Any]:
    stand.prepare(1)
    count = stand.size(stand.scale.tasks) * LONGER
    stand.checkpoint()
    stand.peer.fill(count)
    stand.analyze()
    with contextlib.ExitStack() as held:
        if variant == "held":
            held.enter_context(snapshot(stand.place))
        return drained(stand, 1, count)


@contextlib.contextmanager
def snapshot(place: Place) -> Any:
    link = connect(place)
    for statement in OPEN[place.kind]:
        link.run(statement)
    try:
        yield
    finally:
        link.close()
