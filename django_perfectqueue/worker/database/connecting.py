"""Connection settings of a worker: a connect timeout and TCP keepalives."""

from __future__ import annotations

import os
import socket

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_perfectqueue import store

from .link import note_opened_last
from .socket_handle import socket_of

FEW = 16
CONNECT_TIMEOUT = 5
PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
ID, IDLE_ID = "perfectqueue.keepalive", "perfectqueue.idle"


def prepare(using: str, *, idle_limit: float | None = None) -> None:
    """
    Set defaults for this process and its forks; settings of the project stay.

    The server ends transactions that are idle for ``idle_limit`` seconds.
    """
    entry = connections[using].settings_dict
    elsewhere = "service" in entry["OPTIONS"] or "PGCONNECT_TIMEOUT" in os.environ
    if connections[using].vendor != "sqlite" and not elsewhere:
        entry["OPTIONS"].setdefault("connect_timeout", CONNECT_TIMEOUT)
    connection_created.connect(keep_alive, dispatch_uid=ID)
    if idle_limit is not None:
        end_idle_transactions(using, idle_limit)
    note_opened_last()


def keep_few_statements(using: str) -> None:
    """
    Have SQLite's driver keep fewer prepared statements from the next connection on.

    It keeps 128, of which those of a helper take 80 KB each and are seldom repeated.
    """
    if connections[using].vendor == "sqlite":
        connections[using].settings_dict["OPTIONS"].setdefault("cached_statements", FEW)


def end_idle_transactions(using: str, limit: float) -> None:
    """Set the idle-in-transaction timeout on each connection opened from now on."""

    def set_limit(connection: BaseDatabaseWrapper, **kwargs: object) -> None:
        if connection.alias == using:
            store.end_idle_transactions(connection, after=limit)

    connection_created.connect(set_limit, weak=False, dispatch_uid=IDLE_ID)


def keep_alive(sender: object, connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    """
    Set TCP keepalives that detect a dead peer within a minute.

    The system's default is two hours, for which a handler's query would wait. Settings of
    the project stay.
    """
    given = connection.settings_dict["OPTIONS"]
    if any(name.startswith(("keepalives", "tcp_user")) or name == "service" for name in given):
        return
    peer = socket_of(connection.connection)
    if peer is None:
        return
    with peer:
        if peer.family in (socket.AF_INET, socket.AF_INET6):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in PROBES.items():
                if hasattr(socket, name):
                    peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
