"""What the harness asks of everyone who is measured."""

from __future__ import annotations

import functools
import json
import os
import pkgutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.database import Link, Target, connect

EVERYWHERE = ("postgresql", "mariadb", "sqlite")
CHUNK = 1000
SERIES = {
    "postgresql": "generate_series(1, {count}) AS series(n)",
    "mariadb": "(SELECT seq AS n FROM seq_1_to_{count}) AS series",
    "sqlite": "(WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up LIMIT {count})"
    " SELECT n FROM up) AS series",
}
UUID = {
    "postgresql": "md5({seed} || series.n::text)::uuid",
    "mariadb": "insert(insert(md5(concat({seed}, '-', series.n)), 13, 1, '4'), 17, 1, '8')",
    "sqlite": "printf('%016x%016x', {seed}, series.n)",
}
TOMORROW = {
    "postgresql": "now() + interval '1 day'",
    "mariadb": "now(6) + interval 1 day",
    "sqlite": "datetime('now', '+1 day')",
}
NOW = {"postgresql": "now()", "mariadb": "now(6)", "sqlite": "datetime('now')"}


class Peer:
    """
    One library, or one variant of it, on one fresh database.

    ``packages`` must be installed, by the names that pip knows. ``size`` is how many
    tasks it drains where the measure asks for one: those who are fast need more for a
    window of seconds. ``rows`` are the kinds of rows that ``stock()`` can make of a copy of one in
    ``table``, with the expressions that differ; those that ``live`` holds for have yet to end.
    ``runs`` is what its workers run, where a submit needs to know that.
    """

    databases: ClassVar[tuple[str, ...]] = EVERYWHERE
    packages: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[tuple[str, ...]] = ("submit", "drain", "snapshot", "latency", "counts")
    table: ClassVar[str] = ""
    rows: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    live: ClassVar[str] = "1 = 1"
    runs: ClassVar[str] = ""
    size: float = 1.0

    def __init__(self, target: Target) -> None:
        self.target = target

    @classmethod
    def lacks(cls) -> str:
        """Return what else must be installed, or nothing."""
        return ""

    @classmethod
    def measures(cls, metric: str, variant: str) -> bool:
        if metric == "backlog":
            return variant.split("-")[0] in cls.rows
        return metric in cls.metrics

    def enter(self, processes: int) -> None:
        """Say in the environment what this process and its workers need to know."""

    def prepare(self) -> None:
        """Make the tables, and what is needed to submit."""

    @functools.cached_property
    def noop(self) -> Any:
        return pkgutil.resolve_name(self.runs)

    def submit(self, index: int) -> None:
        raise NotImplementedError

    def submit_many(self, indexes: Iterable[int]) -> None:
        """Submit by the library's own call for many."""
        raise NotImplementedError

    def fill(self, count: int) -> None:
        """Have so many tasks wait; how long this takes is not measured."""
        if "bulk" in self.metrics:
            self.submit_many(range(count))
        else:
            for index in range(count):
                self.submit(index)

    def stock(self, kind: str, count: int) -> None:
        """Add so many rows that are waiting, scheduled or finished, by the shortest way."""
        self.submit(0)
        self.copy(self.table, count, self.differing(kind))

    def differing(self, kind: str) -> dict[str, str]:
        where = self.target.kind
        words = {"now": NOW[where], "tomorrow": TOMORROW[where], "uuid": self.uuid()}
        return {name: text.format(**words) for name, text in self.rows[kind].items()}

    def workers(self, processes: int) -> list[list[str]]:
        """Return the command of each worker, for so many processes altogether."""
        raise NotImplementedError

    def pending(self) -> int:
        """Return how many tasks the library's own tables say have yet to end."""
        return int(self.link.value(f"SELECT count(*) FROM {self.table} WHERE {self.live}"))

    def instead(self, metric: str, count: int, processes: int) -> dict[str, Any] | None:
        """Return a result that was measured in another way, or None."""
        return None

    @functools.cached_property
    def link(self) -> Link:
        return connect(self.target)

    def uuid(self) -> str:
        """Return an expression for an id of its own in each row that is copied."""
        return UUID[self.target.kind].format(seed=time.time_ns() % 1_000_000)

    def copy(self, table: str, count: int, columns: dict[str, str]) -> None:
        """Add copies of one row, with these expressions in place of some columns."""
        names = [name for name in self.columns(table) if name != "id" or "id" in columns]
        taken = ", ".join(self.quoted(name) for name in names)
        given = ", ".join(columns.get(name, f"one.{self.quoted(name)}") for name in names)
        series = SERIES[self.target.kind].format(count=count)
        row = f"(SELECT * FROM {table} LIMIT 1) AS one"
        self.link.run(
            f"INSERT INTO {table} ({taken}) SELECT {given} FROM {row} CROSS JOIN {series}"
        )

    def numbered(self, name: str) -> str:
        """Return an expression for a text of its own in each row that is copied."""
        is_sqlite = self.target.kind == "sqlite"
        return f"'{name}-' || series.n" if is_sqlite else f"concat('{name}-', series.n)"

    def columns(self, table: str) -> list[str]:
        if self.target.kind == "sqlite":
            return [row[1] for row in self.link.run(f"PRAGMA table_info({table})")]
        here = "current_schema()" if self.target.kind == "postgresql" else "database()"
        rows = self.link.run(
            "SELECT column_name FROM information_schema.columns"
            f" WHERE table_schema = {here} AND table_name = '{table}' AND is_generated = 'NEVER'"
            " ORDER BY ordinal_position"
        )
        return [str(name) for (name,) in rows]

    def quoted(self, name: str) -> str:
        mark = "`" if self.target.kind == "mariadb" else '"'
        return f"{mark}{name}{mark}"


class DjangoPeer(Peer):
    """Runs on Django; ``persistent`` has it keep its connections, which is not the default."""

    apps: ClassVar[tuple[str, ...]] = ()
    persistent: ClassVar[bool] = True

    def settings(self, processes: int) -> dict[str, Any]:
        return {}

    def enter(self, processes: int) -> None:
        given = {"apps": self.apps, "persistent": self.persistent, **self.settings(processes)}
        os.environ["BENCHMARK_DJANGO"] = json.dumps(given)
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"

    def prepare(self) -> None:
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)

    def fill(self, count: int) -> None:
        from django.db import transaction

        if "bulk" in self.metrics:
            self.submit_many(range(count))
            return
        for start in range(0, count, CHUNK):
            with transaction.atomic():
                for index in range(start, min(count, start + CHUNK)):
                    self.submit(index)


def manage(*arguments: object) -> list[str]:
    """Return what ``manage.py`` would be called with."""
    return [sys.executable, "-m", "django", *map(str, arguments)]


def script(name: str, *arguments: object) -> list[str]:
    """Return the command of a program that came with a package."""
    return [str(Path(sys.executable).with_name(name)), *map(str, arguments)]
