"""The command line: python -m benchmarks.chaos."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks.command import Record, count, from_on, run

from .command import FaultsCommand
from .faults.kinds import FAULTS
from .terms import Terms


class Chaos(FaultsCommand):
    name = "chaos"
    about = "Run thousands of tasks while everything around them dies."
    faults = FAULTS

    def add_options(self, option: Callable[..., Any]) -> None:
        super().add_options(option)
        usual, seconds = Terms("", 0.0), from_on(0.01, "seconds", most=10_000.0)
        option("--strikes", type=count, help="end after so many faults, or minutes if sooner")
        option("--hosts", type=count, default=usual.hosts, help="how many workers; %(default)s")
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

    def other_terms(self, options: argparse.Namespace) -> Record:
        least = min(Terms.least_pause, options.pause)
        return {"least_pause": least, "most_pause": options.pause}


if __name__ == "__main__":
    run(Chaos())
