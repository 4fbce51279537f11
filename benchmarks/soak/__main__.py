"""The command line: python -m benchmarks.soak."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, plan
from benchmarks.__main__ import count, lacking, leave, names, say, started, write
from benchmarks.arguments import from_on, new_file
from benchmarks.report import read
from benchmarks.runner import Runner
from benchmarks.servers import Site

from . import deadly, deaths, live
from .report import growing, report, trends

MODULE = "benchmarks.soak"
SPARE = 300.0
LONGEST_DEATH = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if options.report:
        return show([record for file in options.report for record in read(file)])
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, leave)
    if lack := lacking():
        say(lack)
        return 1
    with contextlib.ExitStack() as stack:
        sites = started(options.databases or plan.DATABASES, stack)
        servers = {database: site.version() for database, site in sites.items()}
        patience = options.minutes * 60 + SPARE + options.deaths * LONGEST_DEATH
        runner = stack.enter_context(Runner(patience=patience))
        output = options.output or new_file("soak")
        howlong = f"{options.deaths:,} deaths" if options.deaths else f"{options.minutes:g} minutes"
        say(f"{howlong} on {', '.join(sites)}; written to {output}")
        records: list[dict[str, Any]] = [
            {"machine": machine.described(["perfectqueue"], servers, module=MODULE)}
        ]
        records += soaks(options, sites, runner, output)
        with output.open("w") as file:
            for record in records:
                write(file, record)
    return show(records)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="Have a worker work and rest for long, and see whether anything grows.",
    )
    option = parser.add_argument
    option("--databases", type=names(plan.DATABASES), help="of " + ", ".join(plan.DATABASES))
    option("--minutes", type=from_on(6, "minutes"), default=60.0, help="for how long; 60")
    option("--deaths", type=count, default=0, help="have so many processors die instead")
    option("--processors", type=count, default=2, help="2")
    option("--rate", type=count, default=200, help="tasks a second while there is work; 200")
    option("--seed", type=int, default=1, help="what comes is drawn by this; 1")
    option("--output", type=Path, help="where the samples go; a file in the temporary folder")
    option("--report", type=Path, nargs="+", metavar="FILE", help="print tables of results")
    return parser.parse_args(arguments)


def soaks(
    options: argparse.Namespace, sites: dict[str, Site], runner: Runner, output: Path
) -> list[dict[str, Any]]:
    """Soak one database after the other; return what came of each."""
    found = []
    for database, site in sites.items():
        job, module = job_of(options, output.with_suffix(f".{database}.samples").absolute())
        result = runner.run_module(module, dict(vars(job)), site)
        found.append({"database": database, **vars(job), **result})
    return found


def job_of(options: argparse.Namespace, samples: Path) -> tuple[deaths.Job | live.Job, str]:
    """Return what is to be done on each database, and the module that does it."""
    if options.deaths:
        return deaths.Job(options.deaths, options.processors, options.seed), deaths.__name__
    terms = (options.minutes, options.processors, options.rate, options.seed, str(samples))
    return live.Job(*terms), live.__name__


def show(records: Sequence[dict[str, Any]]) -> int:
    """Print a table for each database; return 1 when something grows or went wrong."""
    bad = 0
    for record in records:
        if "error" in record:
            say(f"{record['database']}: FAILED: {record['error']}")
            bad = 1
        elif "deaths" in record:
            print(deadly.report(record), end="\n\n")
            bad = bad or int(bool(deadly.growing(record["samples"])))
        elif "samples" in record:
            print(report(record), end="\n\n")
            bad = bad or int(bool(growing(trends(record["samples"]))))
    return bad


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        os.write(2, b"Interrupted; nothing is left running.\n")
        sys.exit(130)
