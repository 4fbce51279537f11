"""Which samples are taken, and in which order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from benchmarks.measures import MEASURES
from benchmarks.peers import OURS, PEERS, kind_of
from benchmarks.sample import Job
from benchmarks.scale import Scale

DATABASES = ("sqlite", "postgresql", "mariadb")
IN_SHORT = (OURS, "perfectqueue-each", "pgqueuer", "django-tasks-db", "raw-100", "pgbench")
METRICS_IN_SHORT = ("submit", "bulk", "drain", "latency", "counts")
BESIDE_ITSELF = ("backlog", "snapshot")
VARIANTS_IN_SHORT = {"drain": ("1",), "latency": ("1",)}
PARTS = {
    "perfectqueue-each": ("drain", "counts"),
    "perfectqueue-users": ("bulk", "drain", "backlog", "counts"),
    "pgqueuer-100": ("drain", "backlog", "snapshot", "counts"),
    "raw-1": ("drain", "snapshot", "counts"),
}
"""What is measured of a variant: where it would not differ, it has no part."""


def jobs(
    *,
    peers: Sequence[str],
    databases: Sequence[str],
    metrics: Sequence[str],
    rounds: int,
    scale: Scale,
    short: bool,
) -> Iterator[Job]:
    """
    Yield the samples round by round, the peers of one measure next to each other.

    What disturbs the machine for a minute then disturbs all peers of that minute. Where a
    peer is compared with itself, its variants are next to each other instead.
    """
    for number, metric in itertools.product(range(1, rounds + 1), metrics):
        there = variants(metric, short=short)
        if metric in BESIDE_ITSELF:
            found = itertools.product(databases, peers, there)
        else:
            turned = itertools.product(there, databases, peers)
            found = ((database, peer, variant) for variant, database, peer in turned)
        for database, peer, variant in found:
            if takes_part(peer, metric, variant, database):
                yield Job(number, metric, variant, database, peer, scale)


def variants(metric: str, *, short: bool) -> Sequence[str]:
    there = MEASURES[metric].variants
    return VARIANTS_IN_SHORT.get(metric, there) if short else there


def takes_part(peer: str, metric: str, variant: str, database: str) -> bool:
    kind = kind_of(peer)
    if database not in kind.databases or not kind.measures(metric, variant):
        return False
    if metric not in PARTS.get(peer, (metric,)):
        return False
    if metric == "latency" and variant != "1":
        return peer == OURS
    return metric != "counts" or database == "postgresql"


def all_peers(*, short: bool) -> tuple[str, ...]:
    return IN_SHORT if short else tuple(PEERS)


def all_metrics(*, short: bool) -> tuple[str, ...]:
    return METRICS_IN_SHORT if short else tuple(MEASURES)
