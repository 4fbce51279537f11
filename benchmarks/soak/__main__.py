"""The command line: python -m benchmarks.soak."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.command import EPILOG, Record, RunCommand, count, failures, from_on, run

from .report import deaths_report, growing, grown_by_deaths, report, trends

SPARE = 300.0
LONGEST_DEATH = 1.0


class Soak(RunCommand):
    name = "soak"
    about = "Have a worker work and rest for long, and see whether anything grows."
    epilog = EPILOG + "It ends with 1 when something grows."

    def add_options(self, option: Callable[..., Any]) -> None:
        option("--minutes", type=from_on(6, "minutes"), default=60.0, help="for how long; 60")
        option("--deaths", type=count, default=0, help="have so many processors die instead")
        option("--processors", type=count, default=2, help="2")
        option("--rate", type=count, default=200, help="tasks a second while there is work; 200")
        option("--seed", type=int, default=1, help="what comes is drawn by this; 1")

    def terms(self, options: argparse.Namespace, database: str) -> Record:
        self.child = "deaths" if options.deaths else "live"
        names = ("deaths",) if options.deaths else ("minutes", "rate")
        terms = {name: getattr(options, name) for name in (*names, "processors", "seed")}
        samples = options.output.with_suffix(f".{database}.samples").absolute()
        return terms if options.deaths else {**terms, "samples": str(samples)}

    def patience(self, terms: Record) -> float:
        return float(terms.get("minutes", 0) * 60 + terms.get("deaths", 0) * LONGEST_DEATH + SPARE)

    def summary(self, record: Record) -> str:
        return f"grows: {', '.join(grown(record)) or 'nothing'}"

    def is_bad(self, record: Record) -> bool:
        return "error" in record or bool(grown(record))

    def report(self, records: Sequence[Record]) -> str:
        runs = [record for record in records if "samples" in record]
        tables = [deaths_report(run) if "begun" in run else report(run) for run in runs]
        return "\n\n".join([*tables, *failures(records)])


def grown(record: Record) -> list[str]:
    if "begun" in record:
        return grown_by_deaths(record["samples"])
    return growing(trends(record["samples"]))


if __name__ == "__main__":
    run(Soak())
