"""What the harness asks of everyone who is measured."""

from __future__ import annotations

import functools
import json
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.database import DATABASES, Link, Target, connect

ONE_BY_ONE = ("submit", "drain", "latency")
"""What is measured of a library without a call for many."""
CHUNK = 1000


class Peer:
    """
    One library, or one variant of it, on one fresh database.

    ``packages`` must be installed, by the names that pip knows. ``size`` is how many
    tasks it drains where the measure asks for one: those who are fast need more for a
    window of seconds. Rows of ``table`` that ``live`` holds for have yet to end.
    ``runs`` is what its workers run, where a submit needs to know that.
    """

    databases: ClassVar[tuple[str, ...]] = DATABASES
    packages: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[tuple[str, ...]] = ("submit", "bulk", "drain", "latency")
    table: ClassVar[str] = ""
    live: ClassVar[str] = "1 = 1"
    runs: ClassVar[str] = ""
    size: float = 1.0

    def __init__(self, target: Target) -> None:
        self.target = target

    def enter(self, processes: int) -> None:
        """Say in the environment what this process and its workers need to know."""

    def prepare(self) -> None:
        """Make the tables, and what is needed to submit."""

    @functools.cached_property
    def noop(self) -> Any:
        return pkgutil.resolve_name(self.runs)

    def submit(self, index: int) -> None:
        raise NotImplementedError

    def submit_many(self, indexes: Sequence[int]) -> None:
        """Submit by the library's own call for many; one by one where it has none."""
        for index in indexes:
            self.submit(index)

    def workers(self, processes: int) -> list[list[str]]:
        """Return the command of each worker, for so many processes altogether."""
        raise NotImplementedError

    def pending(self) -> int:
        """Return how many tasks the library's own tables say have yet to end."""
        return int(self.link.value(f"SELECT count(*) FROM {self.table} WHERE {self.live}"))

    @functools.cached_property
    def link(self) -> Link:
        return connect(self.target)


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

    def submit_many(self, indexes: Sequence[int]) -> None:
        from django.db import transaction

        for start in range(0, len(indexes), CHUNK):
            with transaction.atomic():
                super().submit_many(indexes[start : start + CHUNK])


def manage(*arguments: object) -> list[str]:
    """Return what ``manage.py`` would be called with."""
    return [sys.executable, "-m", "django", *map(str, arguments)]


def script(name: str, *arguments: object) -> list[str]:
    """Return the command of a program that came with a package."""
    return [str(Path(sys.executable).with_name(name)), *map(str, arguments)]
