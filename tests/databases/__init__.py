"""
Database servers of the tests' own, thrown away afterwards.

::

    with server_like(connection, durable=True) as server:
        worker = start_process(["pq_worker"], env=environment_for(server))
        server.kill()
        server.start()

A server keeps its data folder and socket over ``kill``, ``stop`` and ``start``.
Leaving the block stops it and removes both, and so does the end of the process
that made it, however that comes.
"""

from .environment import environment_for, server_like
from .lifetime import die_with_parent
from .mariadb import MariaDB
from .postgresql import PostgreSQL
from .server import Server, ServerError, UnavailableError
from .sqlite import SQLite

__all__ = [
    "MariaDB",
    "PostgreSQL",
    "SQLite",
    "Server",
    "ServerError",
    "UnavailableError",
    "die_with_parent",
    "environment_for",
    "server_like",
]
