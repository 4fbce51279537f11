"""The databases without Django: one small connection, in autocommit, for all of them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.place import Place

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

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.run("BEGIN IMMEDIATE" if self.kind == "sqlite" else "BEGIN")
        yield
        self.run("COMMIT")

    def close(self) -> None:
        self.connection.close()


def connect(place: Place, *, database: str | None = None) -> Link:
    """Return a connection to the place, or to another database of its server."""
    place = place if database is None else replace(place, name=database)
    return Link(OPENERS[place.kind](place), place.kind)


def open_postgresql(place: Place) -> Any:
    try:
        import psycopg
    except ImportError:
        import psycopg2

        connection = psycopg2.connect(place.dsn)
        connection.autocommit = True
        return connection
    return psycopg.connect(place.dsn, autocommit=True)


def open_mariadb(place: Place) -> Any:
    import MySQLdb

    return MySQLdb.connect(
        unix_socket=place.host, user=place.user, database=place.name, autocommit=True
    )


def open_sqlite(place: Place) -> Any:
    connection = sqlite3.connect(place.name, timeout=20, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    return connection


OPENERS = {"postgresql": open_postgresql, "mariadb": open_mariadb, "sqlite": open_sqlite}
