"""
Hosts on one machine.

In namespaces, where the machine lets a test make them: each host then has a network
interface, an address and a name of its own, and its cable can be pulled. Elsewhere it
has a loopback address, behind which the server is found, and is given its name.
"""

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

from ..databases import UnavailableError
from .disguise import pretended
from .road import Relay

FORM = "PERFECTQUEUE_TEST_HOSTS"

NEW_NETWORK, NEW_NAME = 0x40000000, 0x04000000
HERE = Path("/proc/thread-self/ns")
KINDS = {"net": NEW_NETWORK, "uts": NEW_NAME}
NETWORK, SERVER = "10.213.77", "10.213.77.254"
LONGEST_SILENCE = Path("/proc/sys/net/ipv4/tcp_rto_max_ms")


def network_for(connection):
    """
    Return the best network that can be had here; PERFECTQUEUE_TEST_HOSTS asks for one.

    It says which one it is, and why, by its ``form``.
    """
    wanted = os.environ.get(FORM, "")
    if wanted != "loopback":
        try:
            return NamespaceNetwork(connection)
        except UnavailableError as error:
            if wanted:
                raise
            return LoopbackNetwork(connection, why=str(error))
    return LoopbackNetwork(connection, why=f"{FORM} asks for it.")


class Host:
    """A host of the fleet: ``url`` is where it finds the database."""

    def __init__(self, name, url):
        self.name = name
        self.url = url
        self.clock = 0.0
        """By how many seconds its clock is wrong."""

    @contextlib.contextmanager
    def inside(self):
        """What is started in here, runs on this host."""
        with mock.patch.dict(os.environ, pretended(self.name, self.clock)):
            yield

    def cut_off(self):
        raise NotImplementedError

    def reconnect(self):
        raise NotImplementedError


class LoopbackHost(Host):
    def __init__(self, name, relay):
        super().__init__(name, relay.url)
        self.relay = relay

    def cut_off(self):
        self.relay.cut()

    def reconnect(self):
        self.relay.restore()


class LoopbackNetwork:
    def __init__(self, connection, *, why=""):
        self.connection = connection
        self.form = f"loopback addresses: {why}"
        self.relays = []

    def host(self, name):
        relay = Relay(self.connection, f"127.0.0.{len(self.relays) + 2}")
        self.relays.append(relay)
        relay.open()
        return LoopbackHost(name, relay)

    def close(self):
        for relay in self.relays:
            relay.close()


class Namespace:
    """
    A network and a host name of their own, for who is inside.

    They are nobody's but those who are in there or hold this: nothing stays behind.
    """

    def __init__(self, name):
        with keeping_place():
            must(libc().unshare(NEW_NETWORK | NEW_NAME))
            socket.sethostname(name)
            self.kinds = {kind: os.open(HERE / kind, os.O_RDONLY) for kind in KINDS}
            with contextlib.suppress(OSError):
                LONGEST_SILENCE.write_text("1000")
            ip("link", "set", "lo", "up")

    @property
    def path(self):
        return f"/proc/{os.getpid()}/fd/{self.kinds['net']}"

    @contextlib.contextmanager
    def inside(self):
        with keeping_place():
            for kind, handle in self.kinds.items():
                must(libc().setns(handle, KINDS[kind]))
            yield

    def close(self):
        for handle in self.kinds.values():
            os.close(handle)


class NamespaceHost(Host):
    def __init__(self, name, url, *, namespace, switch, port):
        super().__init__(name, url)
        self.namespace = namespace
        self.switch = switch
        self.port = port

    @contextlib.contextmanager
    def inside(self):
        with super().inside(), self.namespace.inside():
            yield

    def cut_off(self):
        """Pull the cable at the switch: the host's own end stays up, as if all were well."""
        self.plug("nomaster")

    def reconnect(self):
        self.plug("master", "switch")

    def plug(self, *into):
        with self.switch.inside():
            ip("link", "set", self.port, *into)


class NamespaceNetwork:
    """A switch, to which each host has a cable, and the database server beside it."""

    form = "network namespaces"

    def __init__(self, connection):
        require_namespaces()
        self.switch = Namespace("switch")
        self.hosts = []
        with self.switch.inside():
            ip("link", "add", "switch", "type", "bridge")
            ip("addr", "add", f"{SERVER}/24", "dev", "switch")
            ip("link", "set", "switch", "up")
            self.relay = Relay(connection, SERVER)
        self.relay.open()

    def host(self, name):
        number, namespace = len(self.hosts) + 1, Namespace(name)
        port = f"port{number}"
        with self.switch.inside():
            peer = ("peer", "name", "eth0", "netns", namespace.path)
            ip("link", "add", port, "type", "veth", *peer)
            ip("link", "set", port, "master", "switch", "up")
        with namespace.inside():
            ip("addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
            ip("link", "set", "eth0", "up")
        host = NamespaceHost(
            name, self.relay.url, namespace=namespace, switch=self.switch, port=port
        )
        self.hosts.append(host)
        return host

    def close(self):
        self.relay.close()
        for namespace in [self.switch, *(host.namespace for host in self.hosts)]:
            namespace.close()


def require_namespaces():
    """Raise UnavailableError unless a test may make networks here."""
    if sys.platform != "linux":
        raise unavailable("Only Linux has network namespaces.")
    if not shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
        raise unavailable("There is no program 'ip' here.")
    try:
        with contextlib.closing(Namespace("trial")) as trial, trial.inside():
            ip("link", "add", "trial", "type", "bridge")
            ip("link", "add", "one", "type", "veth", "peer", "name", "other")
    except (OSError, subprocess.CalledProcessError) as error:
        raise unavailable(f"This process may not make a network: {error}.") from error


def unavailable(reason):
    return UnavailableError(reason, remedy="run as root, with iproute2 and CAP_SYS_ADMIN")


@contextlib.contextmanager
def keeping_place():
    """Come back, afterwards, to the namespaces in which this thread is now."""
    with contextlib.ExitStack() as stack:
        home = {kind: os.open(HERE / kind, os.O_RDONLY) for kind in KINDS}
        for handle in home.values():
            stack.callback(os.close, handle)
        try:
            yield
        finally:
            for kind, handle in home.items():
                must(libc().setns(handle, KINDS[kind]))


def ip(*arguments):
    """Change the network in which this thread is."""
    command = ["ip", *arguments]
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    environment = {**os.environ, "PATH": path}
    subprocess.run(command, check=True, capture_output=True, env=environment)


def libc():
    return ctypes.CDLL(None, use_errno=True)


def must(result):
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
