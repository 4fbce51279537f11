"""Database servers of the benchmark's own, as durable as they come out of the box."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from benchmarks.database import Link, Target, connect
from tests.databases import environment_for
from tests.databases.environment import SERVERS

OWN_DATABASES = {"postgresql": "postgres", "mariadb": "mysql", "sqlite": ":memory:"}


class Site:
    """One server, and a fresh database on it for each sample."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.server = SERVERS[kind](durable=True)
        self.numbers = itertools.count(1)

    def __enter__(self) -> Site:
        self.server.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.remove()

    def link(self) -> Link:
        return connect(self.target(), database=OWN_DATABASES[self.kind])

    def target(self, name: str = "") -> Target:
        process = self.server.process
        return Target.of(self.kind, name, self.server.home, process.pid if process else 0)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Target]:
        """Make a database, and drop it on leaving."""
        name = f"sample_{next(self.numbers)}"
        target = self.target(name)
        if self.kind == "sqlite":
            try:
                yield target
            finally:
                for file in Path(target.name).parent.glob(f"{name}.sqlite3*"):
                    file.unlink(missing_ok=True)
            return
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield target
        finally:
            if self.server.is_running:
                force = " WITH (FORCE)" if self.kind == "postgresql" else ""
                self.execute(f"DROP DATABASE {name}{force}")

    def execute(self, sql: str) -> None:
        with contextlib.closing(self.link()) as link:
            link.run(sql)

    def environment(self) -> dict[str, str]:
        return environment_for(self.server)

    def version(self) -> str:
        with contextlib.closing(self.link()) as link:
            return link.version()
