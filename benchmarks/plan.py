"""
Which samples are taken, and in which order: each in a process of its own.

So each peer has its own Django, and nothing of one sample is left for the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.database import this_target
from benchmarks.environment import Environment
from benchmarks.measures import MEASURES
from benchmarks.peers import OURS, kind_of, make

PARTS = {
    "perfectqueue-each": ("drain",),
    "perfectqueue-users": ("bulk", "drain"),
    "pgqueuer-100": ("drain",),
    "raw-1": ("drain",),
}
"""What is measured of a variant: where it would not differ, it has no part."""


def measure(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Take a sample, in its own process."""
    target = this_target()
    environment = Environment(make(job["peer"], target), target, folder, tasks=job["tasks"])
    return MEASURES[job["metric"]].measure(environment, job["variant"])


def jobs(
    rounds: int,
    metrics: Sequence[str],
    databases: Sequence[str],
    peers: Sequence[str],
    tasks: int,
) -> Iterator[dict[str, Any]]:
    """
    Yield the samples round by round, the peers of one measure next to each other.

    What disturbs the machine for a minute then disturbs all peers of that minute.
    """
    for number, metric in itertools.product(range(1, rounds + 1), metrics):
        variants = MEASURES[metric].variants
        for variant, database, peer in itertools.product(variants, databases, peers):
            if takes_part(peer, metric, variant, database):
                yield {
                    "round": number,
                    "metric": metric,
                    "variant": variant,
                    "database": database,
                    "peer": peer,
                    "tasks": tasks,
                }


def takes_part(peer: str, metric: str, variant: str, database: str) -> bool:
    kind = kind_of(peer)
    if database not in kind.databases or metric not in kind.metrics:
        return False
    if metric == "latency" and variant != "1" and peer != OURS:
        return False
    return metric in PARTS.get(peer, (metric,))
