"""The way from a host to the database server, which a test can cut and mend."""

import contextlib
import select
import socket
import threading
from urllib.parse import urlencode, urlsplit

from ..databases.environment import kind_of, url_of
from ..databases.proxy import hang_up

NO_LOCKS_OF_THE_LOST = {
    "postgresql": {"options": "-c idle_in_transaction_session_timeout=1000"},
    "mariadb": {"init_command": "SET SESSION idle_transaction_timeout = 1"},
}
"""What lets the server end a transaction in which no one says anything any more."""


class Road:
    """
    Passes on by TCP what hosts and the server say to each other.

    While it is cut it passes on nothing, and closes nothing: both ends believe in their
    connection, and what they said arrives when it is mended.
    """

    def __init__(self, connection, address):
        self.connection = connection
        self.address = address
        self.listener = socket.create_server((address, 0))
        self.is_open = threading.Event()
        self.is_open.set()
        self.ends = []

    def open(self):
        """Let traffic begin; the server is looked for from where the caller is."""
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self):
        """The database behind it, as a worker is to be told of it."""
        url = urlsplit(url_of(self.connection))
        user = f"{url.netloc.rpartition('@')[0]}@" if "@" in url.netloc else ""
        options = urlencode(NO_LOCKS_OF_THE_LOST.get(kind_of(self.connection), {}))
        port = self.listener.getsockname()[1]
        return url._replace(netloc=f"{user}{self.address}:{port}", query=options).geturl()

    def cut(self):
        self.is_open.clear()

    def mend(self):
        self.is_open.set()

    def accept(self):
        while True:
            try:
                client, _address = self.listener.accept()
                self.is_open.wait()
                server = reach(self.connection)
            except OSError:
                return
            self.ends += [client, server]
            threading.Thread(target=self.pass_on, args=(client, server), daemon=True).start()

    def pass_on(self, client, server):
        with contextlib.suppress(OSError), contextlib.closing(client), contextlib.closing(server):
            while True:
                for source in select.select([client, server], [], [])[0]:
                    self.is_open.wait()
                    if not (said := source.recv(65536)):
                        return
                    self.is_open.wait()
                    (server if source is client else client).sendall(said)

    def close(self):
        hang_up(self.listener, *self.ends)
        self.listener.close()
        self.is_open.set()


def reach(connection):
    """Return a socket that leads to the server of one of Django's connections."""
    given = connection.settings_dict
    host = given["OPTIONS"].get("host") or given["HOST"] or "localhost"
    postgresql = connection.vendor == "postgresql"
    port = int(given["PORT"] or (5432 if postgresql else 3306))
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{host}/.s.PGSQL.{port}" if postgresql else host)
    return server
