"""The command line: python -m benchmarks."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import machine, plan, report
from benchmarks.command import Command, Record, count, names, run, say, started
from benchmarks.measures import MEASURES
from benchmarks.peers import PEERS, kind_of, missing
from benchmarks.runner import Runner


class Benchmarks(Command):
    about = "Measure this queue beside others and beside the database alone."

    def add_options(self, option: Callable[..., Any]) -> None:
        for name, known in (("--peers", PEERS), ("--metrics", MEASURES)):
            option(name, type=names(known), default=list(known), help="of " + ", ".join(known))
        option("--rounds", type=count, default=3, help="how often each is measured; %(default)s")
        option("--tasks", type=count, default=5_000, help="of a drain of a peer of common speed")

    def samples(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[Record]:
        peers = those_installed(those_with(options.databases, options.peers))
        sites = started(options.databases if peers else (), stack)
        jobs = list(plan.jobs(options.rounds, options.metrics, list(sites), peers, options.tasks))
        if not jobs:
            raise ValueError(
                "There is nothing to measure: no peer takes part in this on these databases."
            )
        runner = stack.enter_context(Runner())
        versions = {database: site.version() for database, site in sites.items()}
        yield {"machine": machine.described(peers, versions)}
        began = time.monotonic()
        say(f"{len(jobs)} samples, each written to {options.output}")
        for number, job in enumerate(jobs, 1):
            yield {**job, **runner.run_on(sites[job["database"]], "benchmarks.plan:measure", job)}
            say(f"{number}/{len(jobs)} {time.monotonic() - began:4.0f} s")

    def tables(self, samples: Sequence[Record]) -> Sequence[str]:
        return report.tables(samples)

    def what(self, record: Record) -> str:
        what = f"{record['metric']} {record['variant']}"
        return f"{what}, {record['peer']} on {record['database']}"

    def summary(self, record: Record) -> str:
        trouble = "" if record.get("whole", True) else "  NOT WHOLE"
        if "rate" in record:
            return f"{record['rate']:,.0f}/s{trouble}"
        return f"{record['p50']:.1f} ms{trouble}"


def those_with(databases: Sequence[str], peers: Sequence[str]) -> list[str]:
    """Return the peers that work with one of these databases."""
    return [peer for peer in peers if set(databases) & set(kind_of(peer).databases)]


def those_installed(peers: Sequence[str]) -> list[str]:
    """Return the peers that can run here; say what the others lack."""
    found = []
    for peer in peers:
        lack = missing(peer)
        if lack:
            say(f"{peer}: {lack}")
        else:
            found.append(peer)
    return found


if __name__ == "__main__":
    run(Benchmarks())
