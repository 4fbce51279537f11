"""The command line: python -m benchmarks.sustained."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import EPILOG, SPARE, Record, RunCommand, count, from_on, run

from .picture import drawn
from .report import growing, reaches, report

INTERVALS = 30
RETENTION_MOST = 60.0


class Sustained(RunCommand):
    part = "benchmarks.sustained.live:Run.run"
    name = "sustained"
    about = (
        "Submit, run and purge as much as a worker can, in the middle third beside an open\n"
        "snapshot, and see whether the rate holds and anything grows."
    )
    epilog = EPILOG + "It ends with 1 when something grows, or a ratio is missed."

    def add_options(self, option: Callable[..., Any]) -> None:
        option("--minutes", type=from_on(0.5, "minutes"), default=60.0, help="for how long; 60")
        option("--processors", type=count, default=2, help="2")
        option("--seed", type=int, default=1, help="what comes is drawn by this; 1")
        option("--into", type=Path, metavar="FOLDER", help="draw a picture of each run there")

    def terms(self, options: argparse.Namespace, database: str) -> Record:
        """A minute is an interval, or less where there would be too few."""
        seconds = options.minutes * 60
        intervals = max(INTERVALS, round(options.minutes / 3) * 3)
        return {
            **{name: getattr(options, name) for name in ("minutes", "processors", "seed")},
            "intervals": intervals,
            "seconds": seconds / intervals,
            "retention": min(RETENTION_MOST, seconds / 12),
            "samples": str(options.output.with_suffix(f".{database}.samples").absolute()),
        }

    def patience(self, terms: Record) -> float:
        return float(terms["minutes"] * 60 + SPARE)

    def wrong(self, record: Record) -> Sequence[str]:
        """Return the ratios that a run has missed, and what grew."""
        samples = record["samples"]
        return [
            *(reach.name for reach in reaches(samples) if reach.is_missed),
            *(f"{name} grows" for name in growing(samples)),
        ]

    def table(self, run: Record) -> str:
        return report(run)

    def drawn(self, records: Sequence[Record], folder: Path) -> list[Path]:
        runs = [record for record in records if "samples" in record]
        return [drawn(run, folder / f"{run['database']}.svg") for run in runs]


if __name__ == "__main__":
    run(Sustained())
