"""The command line: python -m benchmarks.failover."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos.audit.recovery import MEASURES as RECOVERIES
from benchmarks.chaos.command import FaultsCommand
from benchmarks.chaos.faults.kinds import FAULTS
from benchmarks.chaos.run import Run
from benchmarks.chaos.terms import Terms
from benchmarks.command import Record, count, run
from tests.databases import Server

from .galera import Galera
from .patroni import Patroni
from .primary import FAULT, MEASURES, PRIMARY

CLUSTERS = {"postgresql": Patroni, "mariadb": Galera}
A_KILL = 180.0
"""Seconds that a kill may take at most, with all that comes of it."""


class Failover(FaultsCommand):
    name = "failover"
    part = "benchmarks.failover.__main__:measured"
    about = "Kill the primary of a cluster again and again, while tasks run."
    faults = {PRIMARY: FAULT}

    def add_options(self, option: Callable[..., Any]) -> None:
        option("--patroni", action="store_true", help="three PostgreSQL servers with Patroni")
        option("--galera", type=count, metavar="N", help="so many MariaDB servers with Galera")
        option("--kills", type=count, default=20, help="how often; %(default)s")
        option("--processors", type=count, default=4, help="of the worker; %(default)s")
        option("--seed", type=int, default=1, help="draws what is done; %(default)s")
        option("--keep", type=Path, metavar="FOLDER", help="keep logs and evidence there")

    def terms(self, options: argparse.Namespace, database: str) -> Record:
        return Terms(
            database,
            seconds=options.kills * A_KILL,
            strikes=options.kills,
            seed=options.seed,
            faults=[PRIMARY],
            hosts=1,
            processors=options.processors,
            least_pause=3.0,
            most_pause=6.0,
            nodes=3 if database == "postgresql" else options.galera,
        ).as_json()

    def server(self, database: str) -> Server:
        return CLUSTERS[database](3)

    def again(self, run: Record) -> str:
        terms = run["terms"]
        cluster = "--patroni" if run["database"] == "postgresql" else f"--galera {terms['nodes']}"
        return f"{cluster} --kills {terms['strikes']} --seed {terms['seed']}"

    def wrong(self, record: Record) -> Sequence[str]:
        """Return what was lost or done twice, and what came back too late."""
        late = [f"{one['what']}: late" for one in record["recoveries"] if one["late"]]
        return [*super().wrong(record), *late]

    def samples(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[Record]:
        if options.galera is not None and options.galera < 3:
            raise ValueError("A Galera cluster of fewer than 3 does not outlive one of them.")
        options.databases = ["postgresql"] * options.patroni + ["mariadb"] * bool(options.galera)
        if not options.databases:
            raise ValueError("Say which cluster: --patroni, --galera 3, or both.")
        yield from super().samples(options, stack)


def measured(job: Record, folder: Path) -> Record:
    FAULTS[PRIMARY], RECOVERIES[PRIMARY] = FAULT, MEASURES
    terms = Terms(**job)
    with CLUSTERS[terms.database](terms.nodes) as cluster:
        return Run(terms, cluster, folder).run()


if __name__ == "__main__":
    run(Failover())
