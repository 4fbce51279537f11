"""What goes wrong in a storm: of the chaos what it knows, and the same for clients."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from benchmarks.chaos.faults import DATABASES, Fault
from benchmarks.chaos.faults import FAULTS as CHAOS
from benchmarks.chaos.history import Strike
from benchmarks.chaos.stage import Stage

from .fleet import Crowd

OF_CHAOS = (
    *("backend", "restarted-server", "crashed-server", "crashed-backend", "locked-file"),
    *("processor", "supervisor", "host", "frozen-processor", "frozen-host"),
    *("usr1", "hup", "term"),
)
"""No fault of the network or of clocks: times are compared with those of the log."""
OFTEN = 3
"""How often a client is struck for each time that anything else is."""


def crowd_of(stage: Stage) -> Crowd:
    assert isinstance(stage.fleet, Crowd)
    return stage.fleet


def kill_client(stage: Stage) -> Strike | None:
    """One client is killed (SIGKILL); another one takes its place."""
    pids = stage.one_of(crowd_of(stage).clients())
    if not pids:
        return None
    at = stage.now()
    os.kill(pids[0], signal.SIGKILL)
    return Strike("killed-client", at, at, pids=tuple(pids))


def freeze_clients(stage: Stage) -> Strike | None:
    """Some clients stand still (SIGSTOP), some for longer than their leases last."""
    clients = crowd_of(stage).clients()
    pids = stage.drawn.sample(clients, min(len(clients), stage.drawn.randint(1, 3)))
    if not pids:
        return None
    at = stage.now()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    stage.wait(stage.drawn.choice((0.3, stage.past_the_lease())))
    restored = stage.now()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    return Strike("frozen-clients", at, restored, pids=tuple(pids), freezes=True)


CLIENTS: dict[str, Callable[[Stage], Strike | None]] = {
    "killed-client": kill_client,
    "frozen-clients": freeze_clients,
}
FAULTS = {name: CHAOS[name] for name in OF_CHAOS} | {
    name: Fault(name, act, DATABASES) for name, act in CLIENTS.items()
}


def for_database(database: str) -> tuple[str, ...]:
    """Return the names of the faults that there are on a database, as often as they come."""
    there = [name for name, one in FAULTS.items() if database in one.databases]
    return tuple(name for name in there for _ in range(OFTEN if name in CLIENTS else 1))
