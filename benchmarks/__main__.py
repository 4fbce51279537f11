"""The command line: python -m benchmarks."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TextIO

from benchmarks import machine, plan, report
from benchmarks.arguments import new_file
from benchmarks.machine import IdleMachine
from benchmarks.measures import MEASURES
from benchmarks.peers import PEERS, installed, kind_of, missing
from benchmarks.runner import Runner
from benchmarks.sample import Job
from benchmarks.scale import SHORT, Scale
from benchmarks.servers import Site
from tests.databases import ServerError, UnavailableError

ROUNDS = 3
PATIENCE = 5.0
EPILOG = """
The results are written as they come, one JSON object a line; --report makes tables of them.
docs/reference/benchmarks.md says what is measured, and how.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if options.report:
        return show(options)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, leave)
    options.output = options.output or new_file("benchmarks")
    if lack := lacking():
        say(lack)
        return 1
    databases = options.databases or plan.DATABASES
    asked = options.peers or plan.all_peers(short=options.short)
    options.peers = those_installed(those_with(databases, asked))
    with contextlib.ExitStack() as stack:
        sites = started(databases if options.peers else (), stack)
        jobs = those_asked_for(options, list(sites))
        if not jobs:
            say("There is nothing to measure: no peer takes part in this on these databases.")
            return 1
        try:
            file = stack.enter_context(options.output.open("w"))
        except OSError as error:
            say(f"The results can't be written: {error}")
            return 1
        runner = stack.enter_context(Runner())
        records = measured(options, jobs, sites, runner, file)
    print(report.tables(records))
    return 1 if any("error" in record for record in records) else 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure this queue beside others and beside the database alone.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--short", action="store_true", help="a few minutes: few peers, small numbers")
    option("--databases", type=names(plan.DATABASES), help="of " + ", ".join(plan.DATABASES))
    option("--peers", type=names(PEERS), help="of " + ", ".join(PEERS))
    option("--metrics", type=names(MEASURES), help="of " + ", ".join(MEASURES))
    option("--rounds", type=count, help=f"how often each is measured; {ROUNDS}, or 1 if --short")
    option("--tasks", type=count, help="how many tasks a peer of common speed drains")
    option("--many", type=count, help="how many tasks a large backlog has")
    option("--patience", type=float, help="seconds to wait for others to be quiet before a sample")
    option("--output", type=Path, help="where results go; a new file in the temporary folder")
    option("--report", type=Path, nargs="+", metavar="FILE", help="print tables of results")
    option("--into", type=Path, metavar="PAGE", help="with --report: replace the tables there")
    options = parser.parse_args(arguments)
    if options.into and not options.report:
        parser.error("--into goes with --report")
    return options


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def names(known: Any) -> Callable[[str], list[str]]:
    def split(text: str) -> list[str]:
        given = [name.strip() for name in text.split(",") if name.strip()]
        for name in given:
            if name not in known:
                there = ", ".join(known)
                raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {there}")
        return given

    return split


def show(options: argparse.Namespace) -> int:
    try:
        records = [record for file in options.report for record in report.read(file)]
        text = report.tables(records)
        if options.into:
            report.put(text, options.into)
        else:
            print(text)
    except (OSError, ValueError) as error:
        say(str(error))
        return 1
    return 0


def lacking() -> str:
    """Return what must be installed before anything can be measured, or nothing."""
    if installed("django"):
        return ""
    return f'{sys.executable} has no Django: python -m pip install -e ".[benchmarks]"'


def those_with(databases: Sequence[str], peers: Sequence[str]) -> list[str]:
    """Return the peers that work with one of these databases."""
    return [peer for peer in peers if set(databases) & set(kind_of(peer).databases)]


def those_installed(peers: Sequence[str]) -> list[str]:
    """Return the peers that can run here; say what the others lack."""
    found = []
    for peer in peers:
        lack = missing(peer)
        if lack:
            say(f"{peer}: {lack}")
        else:
            found.append(peer)
    return found


def started(databases: Sequence[str], stack: contextlib.ExitStack) -> dict[str, Site]:
    """Start a server of each kind that can be had; say what the others lack."""
    sites = {}
    for database in databases:
        try:
            sites[database] = stack.enter_context(Site(database))
        except (UnavailableError, ServerError) as error:
            say(f"{database}: {error}")
    return sites


def those_asked_for(options: argparse.Namespace, databases: Sequence[str]) -> list[Job]:
    """Return the samples to be taken of what is there."""
    return list(
        plan.jobs(
            peers=options.peers,
            databases=databases,
            metrics=options.metrics or plan.all_metrics(short=options.short),
            rounds=options.rounds or (1 if options.short else ROUNDS),
            scale=scale_of(options),
            short=options.short,
        )
    )


def measured(
    options: argparse.Namespace,
    jobs: Sequence[Job],
    sites: dict[str, Site],
    runner: Runner,
    file: TextIO,
) -> list[dict[str, Any]]:
    """Take the samples, and write each to the file at once; return them all."""
    versions = {database: site.version() for database, site in sites.items()}
    records = [{"machine": machine.described(options.peers, versions)}]
    patience = options.patience if options.patience is not None else PATIENCE * (not options.short)
    quiet, began = IdleMachine(), time.monotonic()
    say(f"{len(jobs)} samples, each written to {options.output}")
    write(file, records[0])
    for number, job in enumerate(jobs, 1):
        if patience:
            quiet.wait(patience)
        found = runner.take(job, sites[job.database])
        record = {**job.as_json(), "sync_us": quiet.sync_time(), **found}
        write(file, record)
        records.append(record)
        passed = time.monotonic() - began
        say(f"{number}/{len(jobs)} {passed:4.0f} s  round {job.round}  {reported(job, found)}")
    return records


def scale_of(options: argparse.Namespace) -> Scale:
    scale = SHORT if options.short else Scale()
    given = {name: getattr(options, name) for name in ("tasks", "many")}
    return replace(scale, **{name: value for name, value in given.items() if value})


def write(file: TextIO, record: dict[str, Any]) -> None:
    file.write(json.dumps(record) + "\n")
    file.flush()


def reported(job: Job, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{job}: FAILED: {found['error']}"
    trouble = "" if found.get("whole", True) else "  NOT WHOLE"
    if "rate" in found:
        return f"{job}: {found['rate']:,.0f}/s{trouble}"
    if "p50" in found:
        return f"{job}: {found['p50']:.1f} ms{trouble}"
    return f"{job}: {found['finish']['statements']:.2f} statements{trouble}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def leave(signum: int, _: object) -> NoReturn:
    sys.exit(128 + signum)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        os.write(2, b"Interrupted; nothing is left running, and what was measured is kept.\n")
        sys.exit(130)
