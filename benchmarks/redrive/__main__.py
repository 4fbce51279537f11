"""The command line: python -m benchmarks.redrive."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.command import EPILOG, Record, RunCommand, count, run

LEAST = 0.8


class Redrive(RunCommand):
    name = "redrive"
    about = "Retry many dead letters in bulk: is each put back once, and who else waits?"
    epilog = (
        EPILOG
        + """
After each kill of the workers the operation goes on when its lease has run out, within a minute.
It ends with 1 where a task was put back twice or never, or where a drain beside the operation was
slower than 0.8 of the same drain before it, in the median of three rounds.
"""
    )
    child = "live"
    databases = ("postgresql",)

    def add_options(self, option: Callable[..., Any]) -> None:
        option("--letters", type=count, default=1_000_000, help="dead letters; %(default)s")
        option("--kills", type=count, default=3, help="how often to kill the workers; %(default)s")
        option("--tasks", type=count, default=100_000, help="to drain beside it; %(default)s")

    def terms(self, options: argparse.Namespace, database: str) -> Record:
        return {name: getattr(options, name) for name in ("letters", "kills", "tasks")}

    def patience(self, terms: Record) -> float:
        return 7_200.0

    def summary(self, record: Record) -> str:
        whole = "each once" if record["whole"] else "NOT each once"
        return f"{record['left']:,} put back, {whole}; {record['beside']:.2f} beside it"

    def is_bad(self, record: Record) -> bool:
        return "error" in record or not record["whole"] or record["beside"] < LEAST

    def report(self, records: Sequence[Record]) -> str:
        return "\n".join(json.dumps(record) for record in records if "machine" not in record)


if __name__ == "__main__":
    run(Redrive())
