"""Processes that die without a word, and processes that stand still."""

from __future__ import annotations

import signal
from collections.abc import Callable

from benchmarks.chaos.fleet import Host, signal_all
from benchmarks.chaos.history import Strike
from benchmarks.chaos.stage import Stage

from .base import fault


def kill(stage: Stage, name: str, chosen: Callable[[Host], list[int]]) -> Strike | None:
    host = stage.some_host()
    pids = chosen(host)
    if not pids:
        return None
    at = stage.now()
    signal_all(pids, signal.SIGKILL)
    return Strike(name, at, at, host.name, tuple(pids))


@fault("processor")
def kill_processor(stage: Stage) -> Strike | None:
    """One processor is killed (SIGKILL)."""
    return kill(stage, "processor", lambda host: stage.one_of(host.current_processors()))


@fault("helper")
def kill_helper(stage: Stage) -> Strike | None:
    """One listener or janitor is killed."""
    return kill(stage, "helper", lambda host: stage.one_of(host.helpers()))


@fault("supervisor")
def kill_supervisor(stage: Stage) -> Strike | None:
    """A supervisor is killed; the service manager starts another worker."""
    return kill(stage, "supervisor", lambda host: stage.one_of(host.supervisors()))


@fault("launcher")
def kill_launcher(stage: Stage) -> Strike | None:
    """A launcher is killed; the service manager starts another worker."""

    def launcher(host: Host) -> list[int]:
        return [host.launcher.pid] if host.launcher and not host.has_ended() else []

    return kill(stage, "launcher", launcher)


@fault("host")
def kill_host(stage: Stage) -> Strike | None:
    """All processes of a worker are killed at once; it is started again a moment later."""
    host = stage.some_host()
    host.wanted = False
    at = stage.now()
    struck: set[int] = set()
    while pids := host.pids():
        struck.update(pids)
        signal_all(pids, signal.SIGKILL)
    stage.wait(stage.drawn.uniform(0.0, 2.0))
    host.wanted = True
    return Strike("host", at, at, host.name, tuple(struck))


def freeze(stage: Stage, name: str, chosen: Callable[[Host], list[int]]) -> Strike | None:
    host = stage.some_host()
    stopped: set[int] = set()
    at = stage.now()
    while pids := set(chosen(host)) - stopped:
        signal_all(pids, signal.SIGSTOP)
        stopped |= pids
    if not stopped:
        return None
    stage.wait(stage.past_the_lease())
    restored = stage.now()
    signal_all(stopped, signal.SIGCONT)
    return Strike(name, at, restored, host.name, tuple(stopped), freezes=True)


@fault("frozen-processor")
def freeze_processor(stage: Stage) -> Strike | None:
    """One processor stands still (SIGSTOP) until its leases are gone, and then goes on."""
    chosen: list[int] = []

    def once(host: Host) -> list[int]:
        if not chosen:
            chosen.extend(stage.one_of(host.current_processors()))
        return chosen

    return freeze(stage, "frozen-processor", once)


@fault("frozen-host")
def freeze_host(stage: Stage) -> Strike | None:
    """A whole worker stands still until its leases are gone, and then goes on."""
    return freeze(stage, "frozen-host", lambda host: host.pids())
