"""PostgreSQL servers of which Patroni makes one the primary, with an etcd to agree by."""

from __future__ import annotations

import contextlib
import json
import signal
import urllib.request
from typing import Any

from benchmarks.processes import signal_all
from tests.databases import PostgreSQL, Server, UnavailableError
from tests.databases.lifetime import children, is_alive
from tests.databases.postgresql import OWNER
from tests.databases.server import find_programs
from tests.fleet.galera import free_port

from .cluster import LOCALHOST, PATIENCE, Cluster, wait_until

TTL, LOOP_WAIT, RETRY_TIMEOUT = 20, 1, 3
"""Seconds; Patroni takes no shorter TTL than 20."""
REMEDY = "apt-get install --no-install-recommends patroni python3-etcd etcd-server haproxy"
RULES = [
    "local all all trust",
    *(f"host {of} all 127.0.0.1/32 trust" for of in ("all", "replication")),
]


class Etcd(Server):
    name = "etcd"

    def __init__(self) -> None:
        super().__init__(durable=True)
        self.port, self.peers = free_port(), free_port()

    def require(self) -> None:
        if not find_programs(["etcd", "patroni"]):
            raise UnavailableError("There is no etcd or Patroni here.", remedy=REMEDY)

    def initialise(self) -> None:
        """It makes its own folder."""

    def create_database(self) -> None:
        """It has none."""

    def command(self) -> list[str]:
        clients, peers = (f"http://{LOCALHOST}:{port}" for port in (self.port, self.peers))
        return [
            str(find_programs(["etcd"])["etcd"]),
            f"--data-dir={self.data}",
            *(f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            f"--initial-cluster=default={peers}",
        ]

    def answers(self) -> bool:
        return asked(self.port, "/health").get("health") == "true"


class Member(PostgreSQL):
    """A Patroni with its server, as on a host of their own."""

    abandon_signal = signal.SIGTERM
    patience = PATIENCE

    def __init__(self, number: int, etcd: Etcd) -> None:
        super().__init__(durable=True)
        self.number, self.etcd = number, etcd
        self.port, self.rest = free_port(), free_port()

    def initialise(self) -> None:
        self.bring_programs_within_reach()
        (self.home / "patroni.json").write_text(json.dumps(self.configuration()))

    def configuration(self) -> dict[str, Any]:
        place, rest = f"{LOCALHOST}:{self.port}", f"{LOCALHOST}:{self.rest}"
        replicator = {"username": "replicator", "password": "replicator"}
        return {
            "scope": "pq",
            "name": f"node-{self.number}",
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": f"{LOCALHOST}:{self.etcd.port}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL,
                    "loop_wait": LOOP_WAIT,
                    "retry_timeout": RETRY_TIMEOUT,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "use_slots": True},
                },
                "initdb": [{"auth": "trust"}, {"encoding": "UTF8"}, {"locale": "C"}],
            },
            "postgresql": {
                "listen": place,
                "connect_address": place,
                "data_dir": str(self.data),
                "bin_dir": str(self.programs),
                "pgpass": str(self.home / "pgpass"),
                "authentication": {"superuser": {"username": OWNER}, "replication": replicator},
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
                "pg_hba": RULES,
                "parameters": {
                    "unix_socket_directories": str(self.home),
                    "max_connections": 250,
                    "dynamic_shared_memory_type": "mmap",
                },
            },
        }

    def command(self) -> list[str]:
        return [str(find_programs(["patroni"])["patroni"]), str(self.home / "patroni.json")]

    def create_database(self) -> None:
        """The cluster makes it."""

    def answers(self) -> bool:
        return asked(self.rest, "/health").get("state") == "running"

    def is_primary(self) -> bool:
        return asked(self.rest, "/primary").get("role") in ("master", "primary")

    def kill(self) -> None:
        """Kill Patroni and its server, which is no child of it."""
        if self.process is None or not self.is_running:
            return
        self.process.send_signal(signal.SIGSTOP)
        family: list[int] = []
        with contextlib.suppress(OSError, IndexError, ValueError):
            server = int((self.data / "postmaster.pid").read_text().splitlines()[0])
            family = [server, *children(server)]
        signal_all(family, signal.SIGKILL)
        super().kill()
        wait_until(lambda: not any(map(is_alive, family)), "The end of a killed server")


class Patroni(Cluster):
    name = "haproxy"
    kind = "postgresql"
    path = "/primary"

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.etcd = Etcd()
        self.members = [Member(number, self.etcd) for number in range(count)]
        self.parts = [self.etcd, *self.members]

    def start_members(self) -> None:
        for part in self.parts:
            part.start()
        wait_until(self.is_whole, "The whole cluster")

    def answers(self) -> bool:
        """Return whether haproxy has left out the standbys: it asks all in turn until it has."""
        with contextlib.suppress(Exception):
            return not any(self.leads_to_standby() for _member in self.members)
        return False

    def leads_to_standby(self) -> bool:
        with contextlib.closing(self.connect()) as link:
            return bool(link.value("SELECT pg_is_in_recovery()"))

    def primary(self) -> Member:
        return next(one for one in self.members if one.is_primary())

    def has_moved_on(self, dead: Member) -> bool:
        return any(one.is_primary() for one in self.members if one is not dead)

    def is_whole(self) -> bool:
        seen = asked(self.members[0].rest, "/cluster").get("members", [])
        roles = [one["role"] for one in seen if one["state"] in ("running", "streaming")]
        return len(roles) == self.count and "leader" in roles and "sync_standby" in roles

    def places(self, member: Member) -> tuple[str, int]:
        return f"{LOCALHOST}:{member.port}", member.rest


def asked(port: int, path: str) -> dict[str, Any]:
    """Return what a REST API answers, nothing where it answers no or not at all."""
    try:
        with urllib.request.urlopen(f"http://{LOCALHOST}:{port}{path}", timeout=2) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (OSError, ValueError):
        return {}
