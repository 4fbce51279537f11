"""The command line: python -m benchmarks.chaos."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.command import EPILOG, FaultsCommand, Record, count, from_on, names, run

from .faults import FAULTS, for_database
from .report import report
from .terms import Terms


class Chaos(FaultsCommand):
    name = "chaos"
    about = "Run thousands of tasks while everything around them dies."
    epilog = EPILOG + "\n" + "\n".join(f"  {one.name:17} {one.about}" for one in FAULTS.values())

    def add_options(self, option: Callable[..., Any]) -> None:
        super().add_options(option)
        usual, seconds = Terms("", 0.0), from_on(0.01, "seconds", most=10_000.0)
        option("--strikes", type=count, help="end after so many faults, or minutes if sooner")
        option("--faults", type=names(FAULTS), help="those named below; all that there are")
        option("--hosts", type=count, default=usual.hosts, help="how many workers; %(default)s")
        option("--processors", type=count, default=usual.processors, help="of each; %(default)s")
        option(
            "--alive-time",
            type=seconds,
            default=usual.alive_time,
            help="seconds of a lease; %(default)g",
        )
        option(
            "--pause",
            type=seconds,
            default=usual.most_pause,
            help="the most between two faults; %(default)g",
        )

    def terms(self, options: argparse.Namespace, database: str) -> Record:
        there = for_database(database)
        faults = tuple(name for name in options.faults or there if name in there)
        if not faults:
            raise ValueError(
                f"On {database} there is none of these faults: {', '.join(there)} are."
            )
        terms = Terms(
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
        return terms.as_json()

    def report(self, records: Sequence[Record]) -> str:
        return report(records)

    def summary(self, record: Record) -> str:
        late = sum(one["late"] for one in record["recoveries"])
        return (
            f"{record['tasks']:,} tasks, {record['attempts']:,} attempts,"
            f" {sum(record['strikes'].values())} faults, {len(record['violations'])} violations,"
            f" {late} late recoveries"
        )


if __name__ == "__main__":
    run(Chaos())
