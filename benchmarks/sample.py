"""
One sample, in a process of its own: ``python -m benchmarks.sample JOB RESULT``.

So each peer has its own Django, and nothing of one sample is left for the next.
"""

from __future__ import annotations

import json
import sys
import traceback
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

    def __str__(self) -> str:
        return f"{self.metric} {self.variant}: {self.peer} on {self.database}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read(text: str) -> Job:
    fields = json.loads(text)
    return Job(**{**fields, "scale": Scale(**fields["scale"])})


def main() -> None:
    job, result = read(sys.argv[1]), Path(sys.argv[2])
    target = this_target()
    try:
        environment = Environment(make(job.peer, target), target, result.parent, job.scale)
        found = MEASURES[job.metric].measure(environment, job.variant)
    except Exception as error:
        kind = type(error).__name__
        found = {"error": f"{kind}: {error}", "traceback": traceback.format_exc()}
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
