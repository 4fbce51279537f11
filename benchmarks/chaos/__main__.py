"""The command line: python -m benchmarks.chaos."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from benchmarks.command import Record, count, from_on, names, run

from .command import FaultsCommand
from .faults.kinds import CLIENTS, FAULTS
from .terms import Terms
from .workload.storm import BULK, SHARED

STORM = {
    "clients": 8,
    "hosts": 1,
    "alive_time": 3.0,
    "poll_interval": 0.5,
    "least_pause": 0.2,
    "most_pause": 2.0,
    "drain": 60.0,
    "queues": (SHARED, BULK),
}
# None of the network or of clocks: clients reach the server themselves.
OF_STORM = (
    *("backend", "restarted-server", "crashed-server", "crashed-backend", "locked-file"),
    *("processor", "supervisor", "host", "frozen-processor", "frozen-host"),
    *("usr1", "hup", "term", *CLIENTS),
)
OFTEN = 3
"""How often a storm strikes clients for each time that it strikes something else."""


class Chaos(FaultsCommand):
    name = "chaos"
    part = "benchmarks.chaos.run:measured"
    about = "Run thousands of tasks while everything around them dies."
    faults = FAULTS

    def add_options(self, option: Callable[..., Any]) -> None:
        minutes = from_on(0.01, "minutes", most=10_000.0)
        seconds = from_on(0.01, "seconds", most=10_000.0)
        option("--storm", action="store_true", help="use every verb at random from many clients")
        option("--minutes", type=minutes, default=2.0, help="how long, on each; %(default)g")
        option("--seed", type=int, default=1, help="draws what is done and faults; %(default)s")
        option("--faults", type=names(self.faults), help="those named below; all that there are")
        option("--strikes", type=count, help="end after so many faults, or minutes if sooner")
        option("--hosts", type=count, help="how many workers; 3, in a storm 1")
        option("--processors", type=count, help="of each worker; 2")
        option("--clients", type=count, help="processes that act at random; 2, in a storm 8")
        option("--alive-time", type=seconds, help="seconds of a lease; 5, in a storm 3")
        option("--pause", type=seconds, help="the most between two faults; 3, in a storm 2")
        option("--keep", type=Path, metavar="FOLDER", help="keep logs and evidence there")

    def terms(self, options: argparse.Namespace, database: str) -> Record:
        there = [name for name, one in self.faults.items() if database in one.databases]
        if options.storm:
            there = [name for name in there if name in OF_STORM]
        wanted = [name for name in there if name in (options.faults or there)]
        if not wanted:
            raise ValueError(
                f"On {database} there is none of these faults: {', '.join(there)} are."
            )
        often = OFTEN if options.storm else 1
        given = {field.name: getattr(options, field.name, None) for field in fields(Terms)}
        given |= {"seconds": options.minutes * 60.0, "most_pause": options.pause}
        known = {name: value for name, value in given.items() if value is not None}
        terms = Terms(**{"database": database, **(STORM if options.storm else {}), **known})
        return replace(
            terms,
            faults=[name for name in wanted for _ in range(often if name in CLIENTS else 1)],
            least_pause=min(terms.least_pause, terms.most_pause),
        ).as_json()

    def again(self, run: Record) -> str:
        terms = run["terms"]
        return "--storm " * terms["storm"] + (
            f"--databases {run['database']} --seed {terms['seed']}"
            f" --minutes {terms['seconds'] / 60:g} --processors {terms['processors']}"
        )


if __name__ == "__main__":
    run(Chaos())
