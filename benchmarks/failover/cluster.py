"""Servers of which one takes the writes, behind an haproxy that finds it."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.chaos.faults.proxy import socket_in
from benchmarks.database import Target, connect
from benchmarks.environment import holds
from benchmarks.servers import OWN_DATABASES
from tests.databases import Server, ServerError, UnavailableError
from tests.databases.server import DATABASE, find_programs

LOCALHOST = "127.0.0.1"
PATIENCE = 120.0
STEP = 0.05
CONFIGURATION = """
defaults
    mode tcp
    retries 3
    option redispatch
    timeout connect 2s
    timeout check 2s
    timeout client 1h
    timeout server 1h

listen primary
    bind unix@{socket} mode 666
    option httpchk OPTIONS {path}
    http-check expect status 200
    default-server inter 250ms fall 2 rise 2 on-marked-down shutdown-sessions
{sticks}
{servers}
"""
STICKS = """
    stick-table type integer size 1 expire 1d
    stick on int(1)
"""
"""Keeps all connections at one node until it is down, where each node takes writes."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    if not holds(condition, PATIENCE, STEP):
        raise ServerError(f"{what} did not come within {PATIENCE:g} s.")


class Cluster(Server):
    """
    The haproxy, with the servers behind it: clients see one server, in its folder.

    ``parts`` are the members, and what they need to agree, in the order in which they start.
    """

    kind = ""
    path = "/"
    sticks = ""

    def __init__(self, count: int) -> None:
        super().__init__(durable=True)
        self.count = count
        self.members: Sequence[Any] = ()
        self.parts: Sequence[Server] = ()

    def require(self) -> None:
        for part in self.parts:
            part.require()
        if not find_programs(["haproxy"]):
            raise UnavailableError("There is no haproxy here.", remedy="apt-get install haproxy")

    def start(self) -> None:
        if self.folder is None:
            self.require()
            self.start_members()
        super().start()

    @abstractmethod
    def start_members(self) -> None:
        """Start all parts; return when the cluster is whole."""

    @abstractmethod
    def primary(self) -> Any:
        """Return the member that takes the writes."""

    @abstractmethod
    def has_moved_on(self, dead: Any) -> bool:
        """Return whether another takes the writes, and no member waits for the dead one."""

    @abstractmethod
    def is_whole(self) -> bool:
        """Return whether each member follows, so that the next primary may be killed."""

    @abstractmethod
    def places(self, member: Any) -> tuple[str, int]:
        """Return where a member is, and the port at which haproxy asks whether to use it."""

    @property
    def target(self) -> Target:
        return Target.of(self.kind, DATABASE, self.home)

    def initialise(self) -> None:
        servers = (
            f"    server node-{number} {place} check addr {LOCALHOST} port {port}"
            for number, (place, port) in enumerate(map(self.places, self.members))
        )
        text = CONFIGURATION.format(
            socket=socket_in(self.home, self.kind),
            path=self.path,
            sticks=self.sticks,
            servers="\n".join(servers),
        )
        (self.home / "haproxy.cfg").write_text(text)

    def command(self) -> list[str]:
        haproxy = find_programs(["haproxy"])["haproxy"]
        return [str(haproxy), "-db", "-f", str(self.home / "haproxy.cfg")]

    def connect(self, database: str = "") -> Any:
        return connect(self.target, database=database or OWN_DATABASES[self.kind])

    def create_database(self) -> None:
        with contextlib.closing(self.connect()) as link:
            link.run(f"CREATE DATABASE {DATABASE}")

    def remove(self) -> None:
        super().remove()
        for part in reversed(self.parts):
            part.kill()
            part.remove()
