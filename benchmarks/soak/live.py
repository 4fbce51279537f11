"""
One soak on one database, in a process of its own:
``python -m benchmarks.soak.live JOB RESULT``.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import answer
from benchmarks.database import connect, this_target
from benchmarks.environment import Environment, StuckError
from benchmarks.peers.perfectqueue import Load
from benchmarks.scale import Scale

from .load import is_busy, portions
from .resources import resources_of

EVERY = 0.5
SAMPLE_EVERY = 10.0
ENDING = 60.0
RETENTION = 60


@dataclass(frozen=True)
class Job:
    minutes: float
    processors: int
    rate: float
    seed: int
    samples: str
    """The file for samples, so that a soak that is cut short leaves what it has seen."""


class Soaked(Load):
    """A retention that lets the tables become steady soon."""

    dispatch = "benchmarks.workers.perfectqueue.SoakDispatch"
    options = {"RETENTION": {"*": RETENTION, "failed": RETENTION}, "USAGE_TIME": RETENTION}


def soaked(environment: Environment, peer: Soaked, job: Job) -> dict[str, Any]:
    """Work and rest for so long; return the samples, and what became of the tasks."""
    environment.prepare(job.processors)
    coming = portions(job.rate, EVERY, job.seed)
    samples: list[dict[str, float]] = []
    submitted = 0
    with (
        contextlib.closing(connect(environment.target)) as link,
        environment.workers(job.processors) as workers,
    ):
        began = next_portion = next_sample = time.monotonic()
        while (now := time.monotonic()) - began < job.minutes * 60:
            if workers.have_ended():
                raise StuckError(f"The worker has ended by itself.\n{environment.end_of_log()}")
            if now >= next_portion:
                next_portion = max(now, next_portion + EVERY)
                if is_busy(now - began):
                    submitted += submit(peer, next(coming))
            if now >= next_sample:
                next_sample = max(now, next_sample + SAMPLE_EVERY)
                samples.append(
                    {"at": now - began, **resources_of(workers.pids, environment.target, link)}
                )
                with open(job.samples, "a") as file:
                    print(json.dumps(samples[-1]), file=file)
            time.sleep(max(0.0, min(next_portion, next_sample) - time.monotonic()))
        environment.wait_for(lambda: not peer.pending(), ENDING, "The end of all tasks")
        processor_time = workers.processor_time()
    return {"samples": samples, "submitted": submitted, "processor_time": processor_time}


def submit(peer: Soaked, portion: Any) -> int:
    peer.queue.submit_many(portion.tasks)
    for key in portion.cancelled:
        peer.queue[key].cancel_request()
    return len(portion.tasks)


def measure(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    target = this_target()
    peer = Soaked(target)
    return soaked(Environment(peer, target, folder, Scale()), peer, Job(**job))


if __name__ == "__main__":
    answer(measure)
