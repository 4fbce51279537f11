"""The command line: python -m benchmarks.figures."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import django

from benchmarks.command import names
from benchmarks.figures import size, table
from tests.databases import ServerError, UnavailableError, environment_for
from tests.databases.environment import SERVERS

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = "benchmarks.figures.settings"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    versions, before = table.read()
    here = {"python": version(sys.version_info), "django": version(django.VERSION)}
    try:
        now = counted(options.databases)
    except (UnavailableError, ServerError, CountError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.write:
        kept = {name: section for name, section in before.items() if name not in now}
        table.write(here, {**now, **kept})
        print(f"{table.TABLE.relative_to(ROOT)} is written.")
        return 0
    if versions != here:
        print(f"Calls are not compared: the table has {versions}, and this is {here}.")
        now = {name: section for name, section in now.items() if not name.startswith("calls-")}
    return compared(before, now)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures",
        description="Count the figures that must not creep, and compare them with the table.",
    )
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument(
        "--databases",
        type=names(SERVERS),
        default=list(SERVERS),
        help=f"of {', '.join(SERVERS)}; without any, only the size is counted",
    )
    return parser.parse_args(arguments)


def version(numbers: Sequence[object]) -> str:
    return f"{numbers[0]}.{numbers[1]}"


def counted(databases: list[str]) -> table.Figures:
    """Count on all databases at the same time."""
    figures = size.count()
    with ThreadPoolExecutor(max(1, len(databases))) as pool:
        for name, found in zip(databases, pool.map(count_on, databases), strict=True):
            figures |= {f"{kind}-{name}": values for kind, values in found.items()}
    return dict(sorted(figures.items(), key=lambda item: (item[0].partition("-")[0], item[0])))


class CountError(Exception):
    """The figures of a database could not be counted."""


def count_on(database: str) -> table.Figures:
    with SERVERS[database]() as server:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.figures.database"],
            cwd=ROOT,
            env={
                **os.environ,
                **environment_for(server),
                "DJANGO_SETTINGS_MODULE": SETTINGS,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise CountError(f"{database}: {done.stderr[-2000:]}")
    figures: table.Figures = json.loads(done.stdout)
    return figures


def compared(before: table.Figures, now: table.Figures) -> int:
    for line in table.fallen(before, now):
        print(f"lower   {line}")
    risen = table.risen(before, now)
    for line in risen:
        print(f"HIGHER  {line}")
    if risen:
        print("Lower it, or write the table and say why: python -m benchmarks.figures --write")
        return 1
    print(f"{sum(map(len, now.values()))} figures are no higher than the table allows.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
