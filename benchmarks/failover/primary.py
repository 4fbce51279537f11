"""The one fault of these runs, and how long it is felt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.chaos.audit.history import History, Strike
from benchmarks.chaos.faults.kinds import Fault
from benchmarks.chaos.faults.stage import Stage
from benchmarks.chaos.terms import Terms
from benchmarks.database import SERVERS
from tests.databases import ServerError

from .cluster import PATIENCE

PRIMARY = "primary"
ALONE = (1.0, 3.0)
"""Seconds for which the others work without the one that was killed."""


def kill_primary(stage: Stage) -> Strike | None:
    """The primary is killed (SIGKILL) with all that is its host's; later it comes back."""
    cluster: Any = stage.server
    dead = cluster.primary()
    at = stage.now()
    dead.kill()
    if not stage.wait_for(lambda: cluster.has_moved_on(dead), PATIENCE):
        raise ServerError("No other server took over.")
    moved = stage.now()
    stage.wait(stage.drawn.uniform(*ALONE))
    dead.start()
    if not stage.wait_for(cluster.is_whole, PATIENCE):
        raise ServerError("The server that was killed did not come back.")
    # Patroni's server may forget what it has not confirmed: acquires wait for no standby.
    return Strike(PRIMARY, at, moved, crash=stage.terms.database == "postgresql")


def promoted(_history: History, strike: Strike) -> float:
    return strike.restored - strike.at


def first(moments: Iterable[float], since: float) -> float | None:
    return min((moment - since for moment in moments if moment > since), default=None)


def task_starts(history: History, strike: Strike) -> float | None:
    """Return until a task begins that was acquired after the primary's death."""
    taken = {one.ref for one in history.runs if one.began > strike.restored}
    # A server that has died may have forgotten an acquire: such an attempt counts no more.
    late = {
        ref
        for ref in taken
        if min((one.at for one in history.acquires_of.get(ref, ())), default=0.0) > strike.at
    }
    return first((one.began for one in history.runs if one.ref in late), strike.restored)


def submit_commits(history: History, strike: Strike) -> float | None:
    done = (call.answered for call in history.calls if call.verb == "submit" and call.is_done)
    return first(done, strike.restored)


FAULT = Fault(" ".join((kill_primary.__doc__ or "").split()), kill_primary, SERVERS)
BOUNDS = {"postgresql": 10.0, "mariadb": 2.0}


def bound(terms: Terms) -> float:
    return BOUNDS[terms.database]


MEASURES = [
    ("another takes the writes", promoted, None),
    ("a task starts, from then", task_starts, bound),
    ("a submit is confirmed, from then", submit_commits, None),
]
