"""A cluster of MariaDB servers that all take writes."""

import contextlib
import socket
from pathlib import Path

from ..databases import MariaDB
from ..databases.server import UnavailableError, find_programs
from ..waiting import wait_until

PROVIDERS = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so")
COPIERS = ("rsync", "wsrep_sst_rsync")
PATIENCE = 60.0
LOCALHOST = "127.0.0.1"
OPTIONS = (
    "--binlog-format=ROW",
    "--innodb-autoinc-lock-mode=2",
    "--wsrep-on=ON",
    "--wsrep-cluster-name=pq",
    f"--wsrep-node-address={LOCALHOST}",
    "--wsrep-sst-method=rsync",
)


class Node(MariaDB):
    """One server; ``cluster`` are the nodes that it joins, none if it is the first."""

    name = "galera"

    def __init__(self):
        super().__init__()
        self.cluster = []
        self.group, self.transfer, self.increments = (free_port() for _port in range(3))

    def require(self):
        super().require()
        if provider() is None or not find_programs(COPIERS):
            raise UnavailableError(
                "There is no Galera here.", remedy="apt-get install mariadb-server"
            )

    def command(self):
        others = ",".join(f"{LOCALHOST}:{node.group}" for node in self.cluster)
        provided = (
            f"base_port={self.group}",
            f"gmcast.listen_addr=tcp://{LOCALHOST}:{self.group}",
            f"ist.recv_addr={LOCALHOST}:{self.increments}",
        )
        return [
            *super().command(),
            *OPTIONS,
            f"--wsrep-provider={provider()}",
            f"--wsrep-sst-receive-address={LOCALHOST}:{self.transfer}",
            f"--wsrep-provider-options={';'.join(provided)}",
            f"--wsrep-cluster-address=gcomm://{others}",
            *(() if others else ("--wsrep-new-cluster",)),
        ]

    def initialise(self):
        if self.cluster:
            self.run("mkdir", self.data)  # it is sent all the rest
        else:
            super().initialise()

    def create_database(self):
        if not self.cluster:
            super().create_database()

    def answers(self):
        return super().answers() and self.status("wsrep_local_state_comment") == "Synced"

    def status(self, name):
        [(_name, value)] = self.execute(f"SHOW STATUS LIKE '{name}'")
        return value

    def catch_up(self):
        """Return when it has all that any node had before."""
        self.execute("SET SESSION wsrep_sync_wait = 1", "SELECT 1")

    def go_on_alone(self):
        """Do what a person does when half of the cluster is lost: declare the rest to be all."""
        wait_until(lambda: self.status("wsrep_cluster_status") != "Primary", within=PATIENCE)
        self.execute("SET GLOBAL wsrep_provider_options = 'pc.bootstrap=1'")
        wait_until(self.answers, within=PATIENCE)

    def execute(self, *statements):
        """Run statements in a connection of their own; return the rows of the last."""
        with contextlib.closing(self.connect()) as link:
            cursor = link.cursor()
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()


class Cluster:
    """Two nodes, of which the first began."""

    def __init__(self):
        self.nodes = [Node(), Node()]
        for node in self.nodes:
            node.require()

    def start(self):
        first, second = self.nodes
        first.start()
        second.cluster = [first]
        second.start()
        first.cluster = [second]
        self.wait_until_whole()

    def wait_until_whole(self):
        def whole():
            return all(node.status("wsrep_cluster_size") == "2" for node in self.nodes)

        wait_until(whole, within=PATIENCE)

    def remove(self):
        for node in self.nodes:
            node.remove()


def provider():
    return next((path for path in PROVIDERS if Path(path).exists()), None)


def free_port():
    with contextlib.closing(socket.create_server((LOCALHOST, 0))) as free:
        return free.getsockname()[1]
