"""What operators do to workers on any day."""

from __future__ import annotations

import signal

from benchmarks.chaos.history import Strike
from benchmarks.chaos.stage import Stage

from .base import fault

SETTLING = 2.5
MOST_MORE = 2


def tell(stage: Stage, name: str, signum: int) -> Strike | None:
    host = stage.some_host()
    if host.has_ended():
        return None
    at, pids = stage.now(), tuple(host.processors())
    host.send(signum)
    stage.wait(SETTLING)
    return Strike(name, at, at, host.name, pids)


@fault("usr1")
def restart(stage: Stage) -> Strike | None:
    """Graceful restart: another generation takes over while the old one drains (USR1)."""
    return tell(stage, "usr1", signal.SIGUSR1)


@fault("hup")
def restart_now(stage: Stage) -> Strike | None:
    """Immediate restart: the old generation is killed once the new one is there (HUP)."""
    return tell(stage, "hup", signal.SIGHUP)


@fault("int")
def detach(stage: Stage) -> Strike | None:
    """The launcher leaves while its worker drains (INT); another one is started."""
    return tell(stage, "int", signal.SIGINT)


@fault("term")
def stop(stage: Stage) -> Strike | None:
    """The worker is stopped in good order (TERM); another one is started."""
    return tell(stage, "term", signal.SIGTERM)


@fault("quit")
def stop_now(stage: Stage) -> Strike | None:
    """The worker is stopped at once (QUIT); another one is started."""
    return tell(stage, "quit", signal.SIGQUIT)


@fault("scale")
def scale(stage: Stage) -> Strike | None:
    """A graceful restart to another number of processors."""
    host = stage.some_host()
    usual = stage.terms.processors
    others = [n for n in range(1, usual + MOST_MORE) if n != host.options["PROCESSORS"]]
    host.configure(PROCESSORS=stage.drawn.choice(others))
    at, pids = stage.now(), tuple(host.processors())
    host.send(signal.SIGUSR1)
    stage.wait(SETTLING)
    return Strike("scale", at, at, host.name, pids)
