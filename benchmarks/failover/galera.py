"""MariaDB servers that all take writes, of which one is used until it is lost."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fleet.galera import Node, free_port

from .cluster import LOCALHOST, STICKS, Cluster, wait_until

RECOVERED = re.compile(r"Recovered position: *([0-9a-f-]+:-?\d+)")


class Member(Node):
    def __init__(self) -> None:
        super().__init__()
        self.durable = True
        self.position: list[str] = []
        self.check = Check(self)

    def command(self, *options: str) -> list[str]:
        return [*super().command(), *self.position, *options]

    def launch(self) -> None:
        """Start where it ended, so that it is sent what it has missed and not all there is."""
        self.position = []
        if (self.data / "grastate.dat").exists():
            said = subprocess.run(
                self.command("--wsrep-recover"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                **self.as_unprivileged(),
            ).stdout
            found = RECOVERED.findall(said)
            self.position = [f"--wsrep-start-position={found[-1]}"] if found else []
        super().launch()


class Check:
    """Answers haproxy whether a member is ready, as ``clustercheck`` does."""

    def __init__(self, member: Member) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_OPTIONS(self) -> None:
                is_ready = member.is_running and member.answers()
                self.send_response(200 if is_ready else 503)
                self.end_headers()

            def log_message(self, *said: Any) -> None:
                """Say nothing."""

        self.port = free_port()
        server = ThreadingHTTPServer((LOCALHOST, self.port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()


class Galera(Cluster):
    name = "haproxy"
    kind = "mariadb"
    sticks = STICKS

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.members = self.parts = [Member() for _number in range(count)]

    def start_members(self) -> None:
        first, *others = self.members
        first.start()
        for member in others:
            member.cluster = [first]
            member.start()
        for member in self.members:
            member.cluster = [other for other in self.members if other is not member]
        wait_until(self.is_whole, "The whole cluster")

    def create_database(self) -> None:
        """Its first member has made it."""

    def primary(self) -> Member:
        with contextlib.closing(self.connect()) as link:
            home = str(link.value("SELECT @@datadir")).rstrip("/")
        return next(one for one in self.members if str(one.data) == home)

    def has_moved_on(self, dead: Member) -> bool:
        rest = [one for one in self.members if one is not dead]
        return all(self.sees(one, len(rest)) for one in rest)

    def is_whole(self) -> bool:
        return all(one.answers() and self.sees(one, self.count) for one in self.members)

    def sees(self, member: Member, count: int) -> bool:
        return member.answers() and member.status("wsrep_cluster_size") == str(count)

    def places(self, member: Member) -> tuple[str, int]:
        return f"unix@{member.socket}", member.check.port
