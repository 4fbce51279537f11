"""The command line: python -m benchmarks.redrive."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence

from benchmarks import plan
from benchmarks.__main__ import count, lacking, leave, names, say, started
from benchmarks.runner import Runner

from .live import Job

LETTERS, KILLS, TASKS, PATIENCE = 1_000_000, 3, 100_000, 7_200.0
LEAST = 0.8
EPILOG = """
After each kill of the workers the operation goes on when its lease has run out, within a minute.
It prints a JSON object a database, and ends with 1 where a task was put back twice or never, or
where a drain beside the operation was slower than 0.8 of the same drain before it, in the median
of three rounds.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, leave)
    if lack := lacking():
        say(lack)
        return 1
    well = True
    with contextlib.ExitStack() as stack:
        sites = started(options.databases or ["postgresql"], stack)
        runner = stack.enter_context(Runner(patience=PATIENCE))
        for database, site in sites.items():
            job = Job(database, options.letters, options.kills, options.tasks)
            found = runner.run_module("benchmarks.redrive.live", job.as_json(), site)
            print(json.dumps({"database": database, **found}), flush=True)
            well &= found.get("whole", False) and found["beside"] >= LEAST
    return 0 if well else 1


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.redrive",
        description="Retry many dead letters in bulk: is each put back once, and who else waits?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--databases", type=names(plan.DATABASES), help="of " + ", ".join(plan.DATABASES))
    option("--letters", type=count, default=LETTERS, help=f"how many dead letters; {LETTERS}")
    option("--kills", type=count, default=KILLS, help=f"how often to kill the workers; {KILLS}")
    option("--tasks", type=count, default=TASKS, help=f"how many to drain beside it; {TASKS}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        os.write(2, b"Interrupted; nothing is left running.\n")
        sys.exit(130)
