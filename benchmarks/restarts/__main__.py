"""The command line: python -m benchmarks.restarts."""

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
from benchmarks.report import put, read
from benchmarks.runner import Runner

from .live import Job
from .report import MARKS, is_unbroken, report

TIMES, PROCESSORS, BEFORE = 50, 4, 10.0
MODULE = "benchmarks.restarts"
EPILOG = """
The results are written as they come, one JSON object a line; --report makes a table of them.
It ends with 1 when a task was lost or run twice, or when for a moment nobody acquired.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        if options.report:
            records = [record for file in options.report for record in read(file)]
        else:
            for signum in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(signum, leave)
            if lack := lacking():
                say(lack)
                return 1
            records = taken(options)
        hand_over(options, report(records))
    except (OSError, ValueError) as error:
        say(str(error))
        return 1
    samples = [record for record in records if "machine" not in record]
    return 0 if samples and all(map(is_unbroken, samples)) else 1


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="Restart a worker under load, and find out whether anyone could notice.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--times", type=count, default=TIMES, help=f"how often to restart; {TIMES}")
    option("--databases", type=names(plan.DATABASES), help="of " + ", ".join(plan.DATABASES))
    option("--processors", type=count, default=PROCESSORS, help=f"how many; {PROCESSORS}")
    option(
        "--before",
        type=from_on(2, "seconds"),
        default=BEFORE,
        help="seconds before the first restart; 10",
    )
    option("--output", type=Path, help="where results go; a new file in the temporary folder")
    option("--report", type=Path, nargs="+", metavar="FILE", help="print a table of results")
    option("--page", type=Path, metavar="PAGE", help="replace the table there")
    return parser.parse_args(arguments)


def taken(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure on each database, and write each result to the file at once."""
    output = options.output or new_file("restarts")
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(output.open("w"))
        sites = started(options.databases or plan.DATABASES, stack)
        servers = {database: site.version() for database, site in sites.items()}
        runner = stack.enter_context(Runner())
        records = [{"machine": machine.described(["perfectqueue"], servers, module=MODULE)}]
        write(file, records[0])
        for database, site in sites.items():
            job = Job(database, options.processors, options.times, options.before)
            found = runner.run_module(f"{MODULE}.live", job.as_json(), site)
            records.append({"database": database, "processors": options.processors, **found})
            write(file, records[-1])
            say(reported(records[-1]))
    return records


def reported(record: dict[str, Any]) -> str:
    if "error" in record:
        return f"{record['database']}: FAILED: {record['error']}"
    return (
        f"{record['database']}: {record['restarts']} restarts, {record['tasks']:,} tasks,"
        f" lowest second {record['lowest_part'] * 100:.0f} %"
    )


def hand_over(options: argparse.Namespace, text: str) -> None:
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
