"""The fresh database of a sample: how each library is configured for it, and a connection."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

VARIABLE = "BENCHMARK_TARGET"
SERVERS = ("postgresql", "mariadb")
DATABASES = ("sqlite", *SERVERS)
SQLITE = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL",
}
"""The options of Django for a file that several processes write to."""


@dataclass(frozen=True)
class Target:
    """
    ``name`` is the database, or SQLite's file; ``host`` is a socket or the folder it is in.

    ``server`` is the id of the server's first process, 0 where there is none.
    """

    kind: str
    name: str
    host: str = ""
    user: str = ""
    server: int = 0

    @property
    def dsn(self) -> str:
        """PostgreSQL's own words for it."""
        return f"postgresql://{self.user}@/{self.name}?host={self.host}"

    @classmethod
    def of(cls, kind: str, name: str, home: Path, server: int = 0) -> Target:
        """Return a database of the server with this folder."""
        if kind == "postgresql":
            return cls(kind, name, str(home), "postgres", server)
        if kind == "mariadb":
            return cls(kind, name, str(home / "mysql.sock"), "root", server)
        return cls(kind, str(home / f"{name}.sqlite3"))

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    def django(self, *, persistent: bool) -> dict[str, Any]:
        """Return the entry of DATABASES."""
        common = {
            "NAME": self.name,
            "HOST": self.host,
            "USER": self.user,
            "CONN_MAX_AGE": None if persistent else 0,
        }
        if self.kind == "sqlite":
            return {**common, "ENGINE": "django.db.backends.sqlite3", "OPTIONS": SQLITE}
        engine = {"postgresql": "postgresql", "mariadb": "mysql"}[self.kind]
        return {**common, "ENGINE": f"django.db.backends.{engine}"}


def this_target() -> Target:
    """Return the target that the environment of this process names."""
    return Target(**json.loads(os.environ[VARIABLE]))


VERSIONS = {
    "postgresql": "SHOW server_version",
    "mariadb": "SELECT version()",
    "sqlite": "SELECT sqlite_version()",
}
CONNECTIONS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
    "mariadb": "SELECT id FROM information_schema.processlist"
    " WHERE db = database() AND id <> connection_id()",
}
"""What gives the ids of all other connections to the database."""
Rows = list[tuple[Any, ...]]


class Link:
    """One connection. Values are written ``%s`` whatever the database."""

    def __init__(self, connection: Any, kind: str) -> None:
        self.connection = connection
        self.kind = kind
        self.cursor = connection.cursor()

    def run(self, sql: str, *values: Any) -> Rows:
        """Run a statement; return its rows, if it has any."""
        if values:
            self.cursor.execute(self.spelled(sql), values)
        else:
            self.cursor.execute(sql)
        return list(self.cursor.fetchall()) if self.cursor.description else []

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self.cursor.executemany(self.spelled(sql), rows)

    def value(self, sql: str, *values: Any) -> Any:
        return self.run(sql, *values)[0][0]

    def spelled(self, sql: str) -> str:
        return sql.replace("%s", "?") if self.kind == "sqlite" else sql

    def version(self) -> str:
        return str(self.value(VERSIONS[self.kind])).split()[0]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.run("BEGIN IMMEDIATE" if self.kind == "sqlite" else "BEGIN")
        yield
        self.run("COMMIT")

    def close(self) -> None:
        self.connection.close()


def connect(target: Target, *, database: str | None = None) -> Link:
    """Return a connection to the place, or to another database of its server."""
    target = target if database is None else replace(target, name=database)
    return Link(OPENERS[target.kind](target), target.kind)


def open_postgresql(target: Target) -> Any:
    try:
        import psycopg
    except ImportError:
        import psycopg2

        connection = psycopg2.connect(target.dsn)
        connection.autocommit = True
        return connection
    return psycopg.connect(target.dsn, autocommit=True)


def open_mariadb(target: Target) -> Any:
    import MySQLdb

    return MySQLdb.connect(
        unix_socket=target.host, user=target.user, database=target.name, autocommit=True
    )


def open_sqlite(target: Target) -> Any:
    connection = sqlite3.connect(target.name, timeout=20, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    return connection


OPENERS = {"postgresql": open_postgresql, "mariadb": open_mariadb, "sqlite": open_sqlite}
