"""Stands between a test and its database server, and loses the connection on request."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from .lifetime import folder_for_sockets

COMMIT = re.compile(
    rb"(?<!auto)commit(?!ted)"  # or a statement that is a transaction of its own
    rb"|WITH .(stored|closed). AS \(\s+(INSERT INTO|DELETE FROM)(?!.*unnest)",
    re.IGNORECASE | re.DOTALL,
)
DELAY = 0.3


@contextlib.contextmanager
def proxied(connection: Any) -> Iterator[Proxy]:
    """Have this thread's connection go by a proxy; those of other threads go as before."""
    proxy = Proxy(connection)
    direct, connection.settings_dict = connection.settings_dict, proxy.settings()
    connection.close()
    try:
        yield proxy
    finally:
        connection.close()
        connection.settings_dict = direct
        proxy.close()


class Proxy:
    """
    Passes on what either side says, until a COMMIT that it was asked to cut.

    ``before``: the server never hears of it. ``after``: it is done, and the answer is
    lost. ``late``: the client is cut off at once, and the server hears of it a little
    later, when the client may have come back.

    While it is ``silent`` nothing gets through, and nobody learns of it.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        given = connection.settings_dict
        self.host = given["OPTIONS"].get("host") or given["HOST"] or "localhost"
        self.port = int(given["PORT"] or (5432 if connection.vendor == "postgresql" else 3306))
        self.folder = tempfile.mkdtemp(prefix="pq-proxy-", dir=folder_for_sockets())
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.how = ""
        self.cuts = 0
        self.silent = False
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def path(self) -> str:
        name = f".s.PGSQL.{self.port}" if self.is_postgresql else "mysql.sock"
        return os.path.join(self.folder, name)

    @property
    def is_postgresql(self) -> bool:
        return bool(self.connection.vendor == "postgresql")

    def settings(self) -> dict[str, Any]:
        settings = deepcopy(self.connection.settings_dict)
        settings["OPTIONS"].pop("host", None)
        settings["HOST"] = self.folder if self.is_postgresql else self.path
        settings["PORT"] = str(self.port) if self.is_postgresql else ""
        return settings

    def cut(self, how: str) -> None:
        """Cut the connection at its next COMMIT."""
        self.how = how

    def cut_now(self) -> None:
        """Cut every connection that there is."""
        for pair in self.pairs:
            hang_up(*pair)
        self.pairs.clear()

    def accept(self) -> None:
        while True:
            try:
                client, _address = self.listener.accept()
                server = self.reach()
            except OSError:
                return
            self.pairs.append((client, server))
            threading.Thread(target=self.pass_on, args=(client, server), daemon=True).start()

    def reach(self) -> socket.socket:
        if not self.host.startswith("/"):
            return socket.create_connection((self.host, self.port))
        server = socket.socket(socket.AF_UNIX)
        name = f".s.PGSQL.{self.port}"
        server.connect(os.path.join(self.host, name) if self.is_postgresql else self.host)
        return server

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(client), contextlib.closing(server):
            while True:
                for source in select.select([client, server], [], [])[0]:
                    while self.silent:
                        time.sleep(0.02)
                    said = source.recv(65536)
                    if not said:
                        return
                    if source is client and self.how and COMMIT.search(said):
                        self.lose(client, server, said)
                        return
                    (server if source is client else client).sendall(said)

    def lose(self, client: socket.socket, server: socket.socket, said: bytes) -> None:
        how, self.how = self.how, ""
        self.cuts += 1
        if how == "late":
            hang_up(client)
            time.sleep(DELAY)
        if how != "before":
            server.sendall(said)
            server.recv(65536)

    def close(self) -> None:
        hang_up(self.listener)
        self.listener.close()
        self.cut_now()
        shutil.rmtree(self.folder, ignore_errors=True)


def hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
