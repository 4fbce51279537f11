"""The command line: python -m benchmarks.deaths."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.command import EPILOG, SPARE, Record, RunCommand, count, failures, run
from benchmarks.report import in_columns

LONGEST = 1.0
"""Seconds that a death may take."""
NAMES = {
    "processes": "processes of the worker",
    "files": "open files of the supervisor",
    "threads": "threads of the supervisor",
    "memory_kib": "anonymous memory of the supervisor, KiB",
    "folder": "sockets in the folder of NOTIFY",
}
ALLOWED = {"memory_kib": 256.0}
"""What may be more at the end; the allocator keeps some memory that it has had."""


class Deaths(RunCommand):
    child = "live"
    name = "deaths"
    about = "Have processors of a worker die in every way, and see whether anything grows."
    epilog = EPILOG + "It ends with 1 when something grows."

    def add_options(self, option: Callable[..., Any]) -> None:
        option("--deaths", type=count, default=10_000, help="how many; 10000")
        option("--processors", type=count, default=2, help="2")
        option("--seed", type=int, default=1, help="draws of what they die; 1")

    def terms(self, options: argparse.Namespace, database: str) -> Record:
        return {name: getattr(options, name) for name in ("deaths", "processors", "seed")}

    def patience(self, terms: Record) -> float:
        return float(terms["deaths"] * LONGEST + SPARE)

    def summary(self, record: Record) -> str:
        return f"grows: {', '.join(grown(record['samples'])) or 'nothing'}"

    def is_bad(self, record: Record) -> bool:
        return "error" in record or bool(grown(record["samples"]))

    def report(self, records: Sequence[Record]) -> str:
        tables = [table(record) for record in records if "samples" in record]
        return "\n\n".join([*tables, *failures(records)])


def grown(samples: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the figures that are greater at the end than after the first deaths."""
    first, last = samples[0], samples[-1]
    return [name for name in NAMES if last[name] > first[name] + ALLOWED.get(name, 0.0)]


def table(record: Record) -> str:
    samples = record["samples"]
    first, last, grows = samples[0], samples[-1], grown(samples)
    begun = ", ".join(f"{cause} {count:,}" for cause, count in record["begun"].items())
    rows = [
        [
            label,
            f"{first[name]:,.0f}",
            f"{max(sample[name] for sample in samples):,.0f}",
            f"{last[name]:,.0f}",
            "grows" if name in grows else "flat",
        ]
        for name, label in NAMES.items()
    ]
    return (
        f"{record['database']}: {last['deaths']:,.0f} deaths in {record['seconds']:,.0f} s,"
        f" {record['terms']['processors']} processors, {record['killed']} more processes killed\n"
        f"Tasks begun: {begun}\n\n"
        + in_columns(["Figure", f"after {first['deaths']:,.0f}", "most", "at the end", ""], rows)
    )


if __name__ == "__main__":
    run(Deaths())
