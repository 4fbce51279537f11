"""Relays the traffic of hosts and the database server; a test can cut and restore it."""

import contextlib
import select
import socket
import threading
from urllib.parse import urlencode, urlsplit

from ..databases.environment import kind_of, url_of
from ..databases.proxy import hang_up

IDLE_TRANSACTIONS_END = {
    "postgresql": {"options": "-c idle_in_transaction_session_timeout=1000"},
    "mariadb": {"init_command": "SET SESSION idle_transaction_timeout = 1"},
}
"""Have the server end a transaction that is idle."""


class Relay:
    """
    Relays TCP between hosts and the server.

    While it is cut it forwards nothing and closes nothing: both ends keep their connection,
    and what they sent arrives when it is restored.
    """

    def __init__(self, connection, address):
        self.connection = connection
        self.address = address
        self.listener = socket.create_server((address, 0))
        self.is_open = threading.Event()
        self.is_open.set()
        self.ends = []

    def open(self):
        """Accept connections; the server is reached from the caller's network namespace."""
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self):
        """DATABASE_URL of the database behind it."""
        url = urlsplit(url_of(self.connection))
        user = f"{url.netloc.rpartition('@')[0]}@" if "@" in url.netloc else ""
        options = urlencode(IDLE_TRANSACTIONS_END.get(kind_of(self.connection), {}))
        port = self.listener.getsockname()[1]
        return url._replace(netloc=f"{user}{self.address}:{port}", query=options).geturl()

    def cut(self):
        self.is_open.clear()

    def restore(self):
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
            threading.Thread(target=self.forward, args=(client, server), daemon=True).start()

    def forward(self, client, server):
        with contextlib.suppress(OSError), contextlib.closing(client), contextlib.closing(server):
            while True:
                for source in select.select([client, server], [], [])[0]:
                    self.is_open.wait()
                    if not (received := source.recv(65536)):
                        return
                    self.is_open.wait()
                    (server if source is client else client).sendall(received)

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
