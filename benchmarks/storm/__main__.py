"""The command line: python -m benchmarks.storm."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks.chaos.command import FaultsCommand
from benchmarks.chaos.faults.kinds import CLIENTS, FAULTS
from benchmarks.command import Record, count, run

from .scenario import BULK, SHARED

# None of the network or of clocks: clients reach the server themselves.
OF_STORM = (
    *("backend", "restarted-server", "crashed-server", "crashed-backend", "locked-file"),
    *("processor", "supervisor", "host", "frozen-processor", "frozen-host"),
    *("usr1", "hup", "term", *CLIENTS),
)
LEVELS = ("read committed", "repeatable read", "serializable")
TERMS = {
    "client": "benchmarks.storm.client.Client",
    "proxied": False,
    "hosts": 1,
    "alive_time": 3.0,
    "poll_interval": 0.5,
    "least_pause": 0.2,
    "most_pause": 2.0,
    "drain": 60.0,
    "queues": (SHARED, BULK),
}


class Storm(FaultsCommand):
    name = "storm"
    about = "Use every verb at random from many processes while everything dies."
    faults = {name: FAULTS[name] for name in OF_STORM}
    often = dict.fromkeys(CLIENTS, 3)

    def add_options(self, option: Callable[..., Any]) -> None:
        super().add_options(option)
        option("--clients", type=count, default=8, help="how many; %(default)s")
        option("--isolation", choices=LEVELS, default="", help="of all transactions; the default's")

    def other_terms(self, options: argparse.Namespace) -> Record:
        return TERMS


if __name__ == "__main__":
    run(Storm())
