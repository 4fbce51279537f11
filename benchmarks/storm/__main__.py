"""The command line: python -m benchmarks.storm."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import machine, plan
from benchmarks.__main__ import count, lacking, leave, names, say, write
from benchmarks.arguments import from_on, new_file
from benchmarks.chaos.__main__ import GRACE, READING, can_be_had, is_bad, keep
from benchmarks.runner import Runner

from .faults import FAULTS, for_database
from .terms import Terms

MODULE = "benchmarks.storm"
MINUTES = 2.0
EVERY = 30.0
LINES = 12
LEVELS = ("read committed", "repeatable read", "serializable")
EPILOG = """
docs/reference/benchmarks.md says what is audited. The exit code is 0 where nothing was found.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, leave)
    if lack := lacking():
        say(lack)
        return 1
    wanted = options.database or plan.DATABASES
    chosen = [terms(options, database) for database in wanted if can_be_had(database)]
    try:
        records = storms(options, chosen)
    except (OSError, ValueError) as error:
        say(str(error))
        return 1
    return 1 if not records or len(records) < len(wanted) or any(map(is_bad, records)) else 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="Use every verb at random from many processes while everything dies.",
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
        help="how long, on each; %(default)g",
    )
    option("--seed", type=int, default=usual.seed, help="draws verbs and faults; %(default)s")
    option("--clients", type=count, default=usual.clients, help="how many; %(default)s")
    option("--processors", type=count, default=usual.processors, help="of a worker; %(default)s")
    option("--faults", type=names(FAULTS), help="those named below; all that there are")
    option("--isolation", choices=LEVELS, default="", help="of all transactions; Django's default")
    option("--at-once", action="store_true", help="all databases at the same time")
    option("--json", type=Path, metavar="FILE", help="where results go; a new temporary file")
    option("--keep", type=Path, metavar="FOLDER", help="keep logs and evidence there")
    return parser.parse_args(arguments)


def terms(options: argparse.Namespace, database: str) -> Terms:
    there = for_database(database)
    faults = tuple(name for name in there if not options.faults or name in options.faults)
    return Terms(
        database=database,
        seconds=options.minutes * 60.0,
        seed=options.seed,
        faults=faults,
        processors=options.processors,
        clients=options.clients,
        isolation=options.isolation,
    )


def storms(options: argparse.Namespace, chosen: Sequence[Terms]) -> list[dict[str, Any]]:
    """Run each storm, and write and print each result at once."""
    file = options.json or new_file("storm")
    records: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(file.open("w"))
        pool = stack.enter_context(ThreadPoolExecutor(len(chosen) if options.at_once else 1))
        # They are left before the pool, which waits for what they have started.
        runners = [stack.enter_context(Runner(patience=patience(one))) for one in chosen]

        def run(runner: Runner, one: Terms) -> dict[str, Any]:
            say(f"{one.database}: {one.seconds / 60:g} minutes of storm, seed {one.seed}")
            return {"database": one.database, "terms": one.as_json(), **ran(options, runner, one)}

        for record in pool.map(run, runners, chosen):
            write(opened, record)
            records.append(record)
            say(reported(record))
        write(opened, {"machine": machine.described((), {}, module=MODULE)})
    return records


def patience(one: Terms) -> float:
    return one.seconds + one.drain + READING


def ran(options: argparse.Namespace, runner: Runner, one: Terms) -> dict[str, Any]:
    with runner.room() as folder, progress(one, folder):
        try:
            module = f"{MODULE}.run"
            return runner.run_in(folder, module, one.as_json(), os.environ, grace=GRACE)
        finally:
            if options.keep:
                keep(folder, options.keep / f"{one.database}-{one.seed}")


@contextlib.contextmanager
def progress(one: Terms, folder: Path) -> Iterator[None]:
    """Say now and then how far a storm is, by what it has written so far."""
    ended = threading.Event()

    def tell() -> None:
        began = time.monotonic()
        while not ended.wait(EVERY):
            calls, faults = (written(folder / name) for name in ("log", "sample.log"))
            seconds = time.monotonic() - began
            say(f"{one.database}: {seconds:.0f} s, about {calls // 2:,} calls, {faults} faults")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def written(file: Path) -> int:
    """Return how many lines a file has."""
    if not file.exists():
        return 0
    with file.open("rb") as opened:
        return sum(block.count(b"\n") for block in iter(lambda: opened.read(1 << 20), b""))


def reported(record: dict[str, Any]) -> str:
    """Return a verdict, and how to have the same storm again."""
    name = record["database"]
    if "error" in record:
        return f"{name}: FAILED: {record['error']}"
    head = (
        f"{name}: {record['tasks']:,} tasks, {record['attempts']:,} attempts,"
        f" {sum(record['calls'].values()):,} calls, {sum(record['strikes'].values())} faults,"
        f" {len(record['violations'])} violations"
    )
    if not record["violations"]:
        return head
    lines = [f"  {one}" for one in record["violations"][:LINES]]
    lines += [f"  of {kind}: {number}" for kind, number in record["kinds"].items()]
    return "\n".join([head, *lines, f"  {again(record)}"])


def again(record: dict[str, Any]) -> str:
    """Return the command that draws the same verbs and faults; their order in time may differ."""
    given = record["terms"]
    command = (
        f"python -m {MODULE} --database {record['database']} --seed {given['seed']}"
        f" --minutes {given['seconds'] / 60:g} --clients {given['clients']} --keep storm"
    )
    return command + (f" --isolation '{given['isolation']}'" if given["isolation"] else "")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        os.write(2, b"Interrupted; nothing is left running.\n")
        sys.exit(130)
