"""The command line: python -m benchmarks.storm."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.chaos.faults import CLIENTS, FAULTS
from benchmarks.chaos.terms import Terms
from benchmarks.command import EPILOG, FaultsCommand, Record, count, names, run

from .scenario import BULK, SHARED

LINES = 12
OFTEN = 3
"""How often a client is struck for each time that anything else is."""
STORM = {
    name: FAULTS[name]
    for name in (
        *("backend", "restarted-server", "crashed-server", "crashed-backend", "locked-file"),
        *("processor", "supervisor", "host", "frozen-processor", "frozen-host"),
        *("usr1", "hup", "term", *CLIENTS),
    )
}
"""No fault of the network or of clocks: times are compared with those of the database."""
LEVELS = ("read committed", "repeatable read", "serializable")


class Storm(FaultsCommand):
    name = "storm"
    about = "Use every verb at random from many processes while everything dies."
    epilog = EPILOG + "\n" + "\n".join(f"  {one.name:17} {one.about}" for one in STORM.values())

    def add_options(self, option: Callable[..., Any]) -> None:
        super().add_options(option)
        option("--clients", type=count, default=8, help="how many; %(default)s")
        option("--processors", type=count, default=2, help="%(default)s")
        option("--faults", type=names(STORM), help="those named below; all that there are")
        option("--isolation", choices=LEVELS, default="", help="of all transactions; the default's")

    def terms(self, options: argparse.Namespace, database: str) -> Record:
        there = [name for name, one in STORM.items() if database in one.databases]
        there = [name for name in there for _ in range(OFTEN if name in CLIENTS else 1)]
        terms = Terms(
            database=database,
            seconds=options.minutes * 60.0,
            seed=options.seed,
            faults=tuple(name for name in there if not options.faults or name in options.faults),
            hosts=1,
            processors=options.processors,
            alive_time=3.0,
            poll_interval=0.5,
            least_pause=0.2,
            most_pause=2.0,
            drain=60.0,
            queues=(SHARED, BULK),
            clients=options.clients,
            isolation=options.isolation,
        )
        return terms.as_json()

    def summary(self, record: Record) -> str:
        return (
            f"{record['tasks']:,} tasks, {record['attempts']:,} attempts,"
            f" {sum(record['calls'].values()):,} calls, {sum(record['strikes'].values())} faults,"
            f" {len(record['violations'])} violations"
        )

    def report(self, records: Sequence[Record]) -> str:
        """Return each verdict, and how to have the same storm again."""
        lines = []
        for record in (one for one in records if "machine" not in one):
            lines.append(self.line(record))
            if record.get("violations"):
                lines += [f"  {one}" for one in record["violations"][:LINES]]
                lines += [f"  of {kind}: {number}" for kind, number in record["kinds"].items()]
                lines.append(f"  {again(record)}")
        return "\n".join(lines)


def again(record: Record) -> str:
    """Return the command that draws the same verbs and faults; their order in time may differ."""
    given = record["terms"]
    command = (
        f"python -m benchmarks.storm --databases {record['database']} --seed {given['seed']}"
        f" --minutes {given['seconds'] / 60:g} --clients {given['clients']} --keep storm"
    )
    return command + (f" --isolation '{given['isolation']}'" if given["isolation"] else "")


if __name__ == "__main__":
    run(Storm())
