"""The example project, run by its own commands and on a database of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from django.db import connection

from tests.databases import environment_for

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "example_project"
DATA = EXAMPLE / "data"
LONGEST = 120


class Chartroom:
    def __init__(self, url: str, media: Path) -> None:
        self.url = url
        self.media = media

    def demo(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(EXAMPLE / "demo.py"), *options)

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(EXAMPLE / "manage.py"), *arguments)

    def python(self, code: str) -> str:
        """Run some code in the project, and return what it prints."""
        return self.run("-c", f"import django; django.setup()\n{code}").stdout

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CHARTROOM_MEDIA": str(self.media),
            "CHARTROOM_RESAMPLES": "40",
            "DATABASE_URL": self.url,
            "DJANGO_SETTINGS_MODULE": "chartroom.settings",
            "PERFECTQUEUE_NO_BOOTSTRAP": "1",
            "PYTHONPATH": os.pathsep.join([str(EXAMPLE), str(EXAMPLE.parent)]),
        }

    def charts(self, customer: str) -> list[str]:
        return [file.name for file in (self.media / "charts" / customer).glob("*.svg")]


@contextmanager
def chartroom() -> Iterator[Chartroom]:
    folder = Path(tempfile.mkdtemp(prefix="chartroom-"))
    try:
        with own_database(folder) as url:
            yield Chartroom(url, folder / "media")
    finally:
        shutil.rmtree(folder)


@contextmanager
def own_database(folder: Path) -> Iterator[str]:
    """Make a database beside that of the tests, for the example has tables of its own."""
    if connection.vendor == "sqlite":
        yield f"sqlite:///{folder / 'chartroom.sqlite3'}"
        return
    name = f"chartroom_{os.getpid()}"
    url = urlsplit(environment_for(connection)["DATABASE_URL"])
    execute(f"CREATE DATABASE {name}")
    try:
        yield url._replace(path=os.path.join(os.path.dirname(url.path), name)).geturl()
    finally:
        execute(f"DROP DATABASE {name}")


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
