"""The command line: python -m benchmarks.restarts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.command import EPILOG, Record, RunCommand, count, failures, from_on, run
from benchmarks.report import listed, machine

COLUMNS: dict[str, Callable[[Record], Any]] = {
    "": lambda one: f"{one['database']}, {one['terms']['processors']}",
    "restarts": lambda one: one["restarts"],
    "tasks": lambda one: f"{one['tasks']:,}",
    "lost": lambda one: one["lost"] + one["unfinished"],
    "run twice": lambda one: one["twice"] + one["attempts"],
    "longest without an acquirer ms": lambda one: f"{one['unattended'] * 1e3:.0f}",
    "between two acquires ms": lambda one: f"{one['between'] * 1e3:.0f}",
    "before ms": lambda one: f"{one['between_before'] * 1e3:.0f}",
    "tasks a second before": lambda one: f"{one['usual']:.0f}",
    "lowest before": lambda one: one["lowest_before"],
    "median": lambda one: f"{one['median']:.0f}",
    "lowest": lambda one: one["lowest"],
    "lowest %": lambda one: f"{one['lowest_part'] * 100:.0f}",
    "a restart takes s": lambda one: f"{one['took']:.2f}",
    "at most s": lambda one: f"{one['took_longest']:.2f}",
}
BAD = ("lost", "unfinished", "twice", "attempts", "unattended")


class Restarts(RunCommand):
    child = "live"
    name = "restarts"
    about = "Restart a worker under load, and find out whether anyone could notice."
    epilog = EPILOG + (
        "It ends with 1 when a task was lost or run twice, or when for a moment nobody acquired."
    )

    def add_options(self, option: Callable[..., Any]) -> None:
        seconds = from_on(2, "seconds")
        option("--times", type=count, default=50, help="how often to restart; %(default)s")
        option("--processors", type=count, default=4, help="how many; %(default)s")
        option("--before", type=seconds, default=10.0, help="seconds before the first restart; 10")
        option("--seed", type=int, default=1, help="draws the pauses; %(default)s")

    def terms(self, options: argparse.Namespace, database: str) -> Record:
        return {name: getattr(options, name) for name in ("processors", "times", "before", "seed")}

    def summary(self, record: Record) -> str:
        return (
            f"{record['restarts']} restarts, {record['tasks']:,} tasks,"
            f" lowest second {record['lowest_part'] * 100:.0f} %"
        )

    def is_bad(self, record: Record) -> bool:
        """Return whether a task was lost or run twice, or nobody acquired for a moment."""
        return "error" in record or any(record[name] for name in BAD)

    def report(self, records: Sequence[Record]) -> str:
        parts = [machine(record["machine"]) for record in records if "machine" in record]
        runs = [record for record in records if "restarts" in record]
        return "\n\n".join(filter(None, [*parts, listed(runs, COLUMNS), *failures(records)]))


if __name__ == "__main__":
    run(Restarts())
