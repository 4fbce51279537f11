"""The connection between a host and the database, by a proxy that spoils it."""

from __future__ import annotations

from benchmarks.chaos.fleet import Host
from benchmarks.chaos.history import Strike
from benchmarks.chaos.proxy import socket_in
from benchmarks.chaos.stage import Stage

from .base import SERVERS, fault


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
