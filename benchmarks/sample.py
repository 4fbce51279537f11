"""
One sample, in a process of its own.

So each peer has its own Django, and nothing of one sample is left for the next.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.database import this_target
from benchmarks.environment import Environment
from benchmarks.measures import MEASURES
from benchmarks.peers import make
from benchmarks.scale import Scale


@dataclass(frozen=True)
class Job:
    round: int
    metric: str
    variant: str
    database: str
    peer: str
    scale: Scale

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    taken = Job(**{**job, "scale": Scale(**job["scale"])})
    target = this_target()
    environment = Environment(make(taken.peer, target), target, folder, taken.scale)
    return MEASURES[taken.metric].measure(environment, taken.variant)
