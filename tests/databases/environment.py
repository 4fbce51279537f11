from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from .mariadb import MariaDB
from .postgresql import PostgreSQL
from .server import Server, UnavailableError
from .sqlite import SQLite

ROOT = Path(__file__).resolve().parent.parent.parent
SERVERS: dict[str, type[Server]] = {"sqlite": SQLite, "postgresql": PostgreSQL, "mariadb": MariaDB}


def environment_for(database: Any) -> dict[str, str]:
    """
    Return the environment in which a process of a test's works on the given database.

    That is one of Django's connections, in its present state, or a server of this
    package. ``python -m django COMMAND`` then needs no further option.
    """
    url = database.url if isinstance(database, Server) else url_of(database)
    return {
        **os.environ,
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }


def url_of(connection: Any) -> str:
    """Return DATABASE_URL with the name that the connection uses at present."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    url = urlsplit(os.environ["DATABASE_URL"])
    return url._replace(path=os.path.join(os.path.dirname(url.path), quote(name))).geturl()


def server_like(connection: Any, *, durable: bool = False) -> Server:
    """Return a server of the connection's kind, not yet started."""
    kind = kind_of(connection)
    if kind not in SERVERS:
        raise UnavailableError(f"The tests cannot start {kind}.", remedy="a server of your own")
    return SERVERS[kind](durable=durable)


def kind_of(connection: Any) -> str:
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:
        return "mariadb"
    return str(connection.vendor)
