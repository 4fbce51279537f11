"""What goes wrong in a run: each fault, and on which databases there is it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from benchmarks.database import CONNECTIONS, DATABASES, SERVERS, Link
from benchmarks.processes import signal_all

from ..audit.history import Strike
from .fleet import Host
from .proxy import socket_in
from .stage import Stage

Act = Callable[[Stage], Strike | None]


@dataclass(frozen=True)
class Fault:
    """
    ``act`` strikes, waits, and puts right what does not get right by itself; it returns
    what it has done, or None where there was nothing to strike.
    """

    about: str
    act: Act
    databases: tuple[str, ...] = DATABASES


FAULTS: dict[str, Fault] = {}


def fault(name: str, *, databases: Iterable[str] = DATABASES) -> Callable[[Act], Act]:
    def put(act: Act) -> Act:
        FAULTS[name] = Fault(" ".join((act.__doc__ or "").split()), act, tuple(databases))
        return act

    return put


CLIENTS = ("killed-client", "frozen-clients")
"""What strikes clients."""


# Processes that die without a word, and processes that stand still


def kill(name: str, chosen: Callable[[Host], list[int]], stage: Stage) -> Strike | None:
    host = stage.some_host()
    return killed(stage, name, host.name, chosen(host))


def killed(stage: Stage, name: str, host: str, chosen: list[int]) -> Strike | None:
    pids = stage.one_of(chosen)
    at = stage.now()
    signal_all(pids, signal.SIGKILL)
    return Strike(name, at, at, host, tuple(pids)) if pids else None


ANOTHER = "is killed; the service manager starts another worker."
for _name, _chosen, _about in (
    ("processor", Host.current_processors, "One processor is killed (SIGKILL)."),
    ("helper", Host.helpers, "One listener or janitor is killed."),
    ("supervisor", Host.supervisors, f"A supervisor {ANOTHER}"),
    ("launcher", Host.launchers, f"A launcher {ANOTHER}"),
):
    FAULTS[_name] = Fault(_about, partial(kill, _name, _chosen))


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


def freeze(
    stage: Stage, name: str, host: str, chosen: Callable[[], list[int]], seconds: float
) -> Strike | None:
    stopped: set[int] = set()
    at = stage.now()
    while pids := set(chosen()) - stopped:
        signal_all(pids, signal.SIGSTOP)
        stopped |= pids
    if not stopped:
        return None
    stage.wait(seconds)
    restored = stage.now()
    signal_all(stopped, signal.SIGCONT)
    return Strike(name, at, restored, host, tuple(stopped), freezes=True)


@fault("frozen-processor")
def freeze_processor(stage: Stage) -> Strike | None:
    """One processor stands still (SIGSTOP) until its leases are gone, and then goes on."""
    host = stage.some_host()
    pids = stage.one_of(host.current_processors())
    return freeze(stage, "frozen-processor", host.name, lambda: pids, stage.past_the_lease())


@fault("frozen-host")
def freeze_host(stage: Stage) -> Strike | None:
    """A whole worker stands still until its leases are gone, and then goes on."""
    host = stage.some_host()
    return freeze(stage, "frozen-host", host.name, host.pids, stage.past_the_lease())


# What operators do to workers on any day


SETTLING = 2.5
MOST_MORE = 2


def send(name: str, stage: Stage) -> Strike | None:
    host, signum = stage.some_host(), signal.Signals[f"SIG{name.upper()}"]
    return None if host.has_ended() else sent(stage, host, name, signum)


def sent(stage: Stage, host: Host, name: str, signum: int) -> Strike:
    at, pids = stage.now(), tuple(host.processors())
    host.send(signum)
    stage.wait(SETTLING)
    return Strike(name, at, at, host.name, pids)


for _name, _about in {
    "usr1": "Graceful restart: another generation takes over while the old one drains (USR1).",
    "hup": "Immediate restart: the old generation is killed once the new one is there (HUP).",
    "int": "The launcher leaves while its worker drains (INT); another one is started.",
    "term": "The worker is stopped in good order (TERM); another one is started.",
    "quit": "The worker is stopped at once (QUIT); another one is started.",
}.items():
    FAULTS[_name] = Fault(_about, partial(send, _name))


@fault("scale")
def scale(stage: Stage) -> Strike | None:
    """A graceful restart to another number of processors."""
    host = stage.some_host()
    usual = stage.terms.processors
    others = [n for n in range(1, usual + MOST_MORE) if n != host.options["PROCESSORS"]]
    host.configure(PROCESSORS=stage.drawn.choice(others))
    return sent(stage, host, "scale", signal.SIGUSR1)


# The server loses connections, is restarted, or crashes; or its file is locked


MOST_BACKENDS = 6
END = {"postgresql": "SELECT pg_terminate_backend(%s)", "mariadb": "KILL %s"}


@fault("backend", databases=SERVERS)
def end_backends(stage: Stage) -> Strike | None:
    """The server ends some connections of any process, at any moment."""
    with stage.link() as link:
        found = [int(pid) for (pid,) in link.run(CONNECTIONS[link.kind])]
        chosen = stage.drawn.sample(found, min(len(found), stage.drawn.randint(1, MOST_BACKENDS)))
        at = stage.now()
        for backend in chosen:
            with contextlib.suppress(Exception):  # it has ended by itself
                link.run(END[link.kind], backend)
    return Strike("backend", at, at)


@fault("restarted-server", databases=SERVERS)
def restart_server(stage: Stage) -> Strike | None:
    """The server is stopped in good order, is away for a moment, and is started again."""
    at = stage.now()
    stage.server.stop()
    stage.wait(stage.drawn.uniform(0.0, 2.0))
    stage.server.start()
    return Strike("restarted-server", at, stage.now())


@fault("crashed-server", databases=SERVERS)
def crash_server(stage: Stage) -> Strike | None:
    """The server and all its processes are killed; it is started again and recovers."""
    at = stage.now()
    stage.server.kill()
    stage.wait(stage.drawn.uniform(0.0, 1.0))
    stage.server.start()
    forgets = stage.terms.database == "postgresql"
    return Strike("crashed-server", at, stage.now(), crash=forgets)


@fault("crashed-backend", databases=["postgresql"])
def crash_backend(stage: Stage) -> Strike | None:
    """One of the server's processes is killed, which makes it restart all of them."""
    with stage.link() as link:
        [pid] = stage.one_of([int(pid) for (pid,) in link.run(CONNECTIONS[link.kind])]) or [0]
        if not pid:
            return None
        at = stage.now()
        os.kill(pid, signal.SIGKILL)
        has_lost_us(stage, link)
    stage.server.wait_until_it_answers()
    return Strike("crashed-backend", at, stage.now(), crash=True)


def has_lost_us(stage: Stage, link: Link) -> None:
    """Wait until the server has ended this connection as well, as it does all."""
    until = time.monotonic() + stage.server.patience
    while time.monotonic() < until:
        try:
            link.run("SELECT 1")
        except Exception:
            return  # Each driver has its own error for a connection that was ended.
        time.sleep(0.01)


@fault("locked-file", databases=["sqlite"])
def lock_file(stage: Stage) -> Strike | None:
    """Another program writes to the database file, and takes its time."""
    with stage.link() as link:
        link.run("BEGIN IMMEDIATE")
        at = stage.now()
        stage.wait(stage.drawn.uniform(0.5, 4.0))
        link.run("ROLLBACK")
        return Strike("locked-file", at, stage.now())


# The connection between a host and the database, by a proxy that spoils it


def order(stage: Stage, host: Host, mode: str, **how: float) -> None:
    assert stage.proxy is not None
    stage.proxy.order(socket_in(host.home, stage.terms.database), mode, **how)


@fault("cut", databases=SERVERS)
def cut(stage: Stage) -> Strike | None:
    """All connections of a host are cut."""
    host = stage.some_host()
    at = stage.now()
    order(stage, host, "cut")
    return Strike("cut", at, at, host.name)


@fault("black-hole", databases=SERVERS)
def black_hole(stage: Stage) -> Strike | None:
    """
    Nothing that a host and the server say arrives, for less or more than a lease; then all
    of it does, or the connections are cut.
    """
    host = stage.some_host()
    at = stage.now()
    order(stage, host, "hole")
    stage.wait(stage.drawn.uniform(0.5, stage.past_the_lease()))
    if stage.drawn.random() < 0.5:
        order(stage, host, "cut")
    order(stage, host, "pass")
    return Strike("black-hole", at, stage.now(), host.name)


@fault("slow", databases=SERVERS)
def slow(stage: Stage) -> Strike | None:
    """Each message of a host or to it takes long, and the longer the more it says."""
    host = stage.some_host()
    at = stage.now()
    delay, rate = stage.drawn.uniform(0.01, 0.15), stage.drawn.uniform(20e3, 200e3)
    order(stage, host, "slow", delay=delay, rate=rate)
    stage.wait(stage.drawn.uniform(1.0, 4.0))
    order(stage, host, "pass")
    return Strike("slow", at, stage.now(), host.name)


# Wall clocks that jump. On SQLite they decide about leases, so that none is touched there


JUMPS = (-86_400.0, -3_600.0, -7.0, 7.0, 3_600.0, 86_400.0)


@fault("clock", databases=SERVERS)
def jump(stage: Stage) -> Strike | None:
    """The clock of a host jumps, by seconds, an hour or a day, and later jumps back."""
    host = stage.some_host()
    at = stage.now()
    host.clock.ahead = stage.drawn.choice(JUMPS)
    stage.wait(stage.drawn.uniform(1.0, 4.0))
    host.clock.ahead = 0.0
    return Strike("clock", at, stage.now(), host.name)


# Clients


@fault("killed-client")
def kill_client(stage: Stage) -> Strike | None:
    """One client is killed (SIGKILL); another one takes its place."""
    return killed(stage, "killed-client", "", stage.fleet.clients())


@fault("frozen-clients")
def freeze_clients(stage: Stage) -> Strike | None:
    """Some clients stand still (SIGSTOP), some for longer than their leases last."""
    clients = stage.fleet.clients()
    pids = stage.drawn.sample(clients, min(len(clients), stage.drawn.randint(1, 3)))
    seconds = stage.drawn.choice((0.3, stage.past_the_lease()))
    return freeze(stage, "frozen-clients", "", lambda: pids, seconds)
