"""The command line: python -m benchmarks.chaos."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from benchmarks import machine, plan
from benchmarks.__main__ import count, lacking, leave, names, say, write
from benchmarks.arguments import from_on, new_file
from benchmarks.report import put, read
from benchmarks.runner import Runner
from benchmarks.servers import SERVERS
from tests.databases import UnavailableError

from .faults import FAULTS, for_database
from .report import MARKS, report
from .terms import Terms

MODULE = "benchmarks.chaos"
MINUTES = 2.0
READING = 900.0
GRACE = 15.0
EPILOG = """
The results are written as they come, one JSON object a line; --report makes tables of them.
docs/reference/benchmarks.md says what is proved. The exit code is 0 where nothing was found.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if options.report:
        return show(options)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, leave)
    if lack := lacking():
        say(lack)
        return 1
    try:
        chosen = [terms(options, database) for database in options.database or plan.DATABASES]
        with (options.json or new_file("chaos")).open("w") as file:
            records = taken(options, chosen, file)
        hand_over(options, records)
    except (OSError, ValueError) as error:
        say(str(error))
        return 1
    return 1 if len(records) < 2 or any(map(is_bad, records)) else 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="Run thousands of tasks while everything around them dies.",
        epilog=EPILOG + "\n" + "\n".join(f"  {one.name:17} {one.about}" for one in FAULTS.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    usual = Terms("", 0.0)
    option("--database", type=names(plan.DATABASES), help="of " + ", ".join(plan.DATABASES))
    option(
        "--minutes",
        type=from_on(0.01, "minutes", most=10_000.0),
        default=MINUTES,
        help="how long; %(default)g",
    )
    option("--strikes", type=count, help="end after so many faults, or minutes if that is sooner")
    option("--seed", type=int, default=usual.seed, help="draws tasks and faults; %(default)s")
    option("--faults", type=names(FAULTS), help="those named below; all that there are")
    option("--hosts", type=count, default=usual.hosts, help="how many workers; %(default)s")
    option("--processors", type=count, default=usual.processors, help="of each; %(default)s")
    option(
        "--alive-time",
        type=from_on(0.01, "seconds", most=10_000.0),
        default=usual.alive_time,
        help="seconds of a lease; %(default)g",
    )
    option(
        "--pause",
        type=from_on(0.01, "seconds", most=10_000.0),
        default=usual.most_pause,
        help="the most between two faults; %(default)g",
    )
    option("--json", type=Path, metavar="FILE", help="where results go; a new temporary file")
    option("--keep", type=Path, metavar="FOLDER", help="keep diaries and logs there")
    option("--report", type=Path, nargs="+", metavar="FILE", help="print tables of results")
    option("--page", type=Path, metavar="PAGE", help="replace the tables there")
    return parser.parse_args(arguments)


def terms(options: argparse.Namespace, database: str) -> Terms:
    """Return the terms of a run; raise ValueError where none of the faults is known there."""
    there = for_database(database)
    faults = tuple(name for name in options.faults or there if name in there)
    if not faults:
        raise ValueError(f"On {database} there is none of these faults: {', '.join(there)} are.")
    return Terms(
        database=database,
        seconds=options.minutes * 60.0,
        strikes=options.strikes,
        seed=options.seed,
        faults=faults,
        hosts=options.hosts,
        processors=options.processors,
        alive_time=options.alive_time,
        least_pause=min(Terms.least_pause, options.pause),
        most_pause=options.pause,
    )


def taken(
    options: argparse.Namespace, chosen: Sequence[Terms], file: TextIO
) -> list[dict[str, Any]]:
    """Run all that is asked for and can be had, and write each result at once."""
    records: list[dict[str, Any]] = []
    head = machine.described((), {}, module=MODULE)
    for one in (one for one in chosen if can_be_had(one.database)):
        say(f"{one.database}: {one.seconds / 60:g} minutes of chaos, seed {one.seed}")
        record = {"database": one.database, "terms": one.as_json(), **run(options, one)}
        write(file, record)
        records.append(record)
        say(reported(record))
    versions = {one["database"]: one["version"] for one in records if "version" in one}
    records.append({"machine": {**head, "servers": versions}})
    write(file, records[-1])
    return records


def can_be_had(database: str) -> bool:
    try:
        SERVERS[database]().require()
    except UnavailableError as error:
        say(f"{database}: {error}")
        return False
    return True


def run(options: argparse.Namespace, one: Terms) -> dict[str, Any]:
    with Runner(patience=one.seconds + one.drain + READING) as runner, runner.room() as folder:
        try:
            job = one.as_json()
            module = f"{MODULE}.run"
            return runner.run_in(folder, module, job, os.environ, grace=GRACE)
        finally:
            if options.keep:
                keep(folder, options.keep / f"{one.database}-{one.seed}")


def keep(folder: Path, target: Path) -> None:
    """Copy what a run has written: its diary, and what it and the workers have said."""
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "locks":
            copy = target / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                copy.write_bytes(file.read_bytes())


def is_bad(record: dict[str, Any]) -> bool:
    return "error" in record or bool(record.get("violations"))


def reported(record: dict[str, Any]) -> str:
    if "error" in record:
        return f"{record['database']}: FAILED: {record['error']}"
    late = sum(one["late"] for one in record["recoveries"])
    return (
        f"{record['database']}: {record['tasks']:,} tasks, {record['attempts']:,} attempts,"
        f" {sum(record['strikes'].values())} faults, {len(record['violations'])} violations,"
        f" {late} late recoveries"
    )


def show(options: argparse.Namespace) -> int:
    try:
        hand_over(options, [record for file in options.report for record in read(file)])
    except (OSError, ValueError) as error:
        say(str(error))
        return 1
    return 0


def hand_over(options: argparse.Namespace, records: Sequence[dict[str, Any]]) -> None:
    text = report(records)
    if options.page:
        put(text, options.page, MARKS)
    else:
        print(text)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        os.write(2, b"Interrupted; nothing is left running, and what was measured is kept.\n")
        sys.exit(130)
