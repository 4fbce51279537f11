"""How a worker connects: never without end, and with a line that notices its own death."""

from __future__ import annotations

import os
import socket
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

from django_perfectqueue import store

from .socket_handle import socket_of

CONNECT_TIMEOUT = 5
PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
ID, IDLE_ID = "perfectqueue.keepalive", "perfectqueue.idle"


def prepare(using: str, *, idle_limit: float | None = None) -> None:
    """
    Set, for this process and those that it forks, what the project leaves open.

    A connection that stands still in a transaction for ``idle_limit`` seconds loses its locks.
    """
    entry = connections[using].settings_dict
    elsewhere = "service" in entry["OPTIONS"] or "PGCONNECT_TIMEOUT" in os.environ
    if connections[using].vendor != "sqlite" and not elsewhere:
        entry["OPTIONS"].setdefault("connect_timeout", CONNECT_TIMEOUT)
    connection_created.connect(keep_alive, dispatch_uid=ID)
    if idle_limit is not None:
        end_idle_transactions(using, idle_limit)


def end_idle_transactions(using: str, limit: float) -> None:
    """Have the server be told of it on each connection that is made from now on."""

    def set_limit(connection: Any, **kwargs: object) -> None:
        if connection.alias == using:
            store.end_idle_transactions(connection, after=limit)

    connection_created.connect(set_limit, weak=False, dispatch_uid=IDLE_ID)


def keep_alive(sender: Any, connection: Any, **kwargs: Any) -> None:
    """
    Have the system find out within a minute that the other end is gone.

    Else it asks after two hours, and only then a query of a handler's ends that waits for a
    host that has died. What the project has set itself stays.
    """
    given = connection.settings_dict["OPTIONS"]
    if any(name.startswith(("keepalives", "tcp_user")) or name == "service" for name in given):
        return
    line = socket_of(connection.connection)
    if line is None:
        return
    with line:
        if line.family in (socket.AF_INET, socket.AF_INET6):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in PROBES.items():
                if hasattr(socket, name):
                    line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
