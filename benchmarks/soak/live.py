"""
One soak on one database, in a process of its own:
``python -m benchmarks.soak.live JOB RESULT``.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from benchmarks.database import connect
from benchmarks.environment import Live
from benchmarks.peers.perfectqueue import Load

from .load import Portion, is_busy, portions
from .resources import resources_of

EVERY = 0.5
SAMPLE_EVERY = 10.0
RETENTION = 60


class Soaked(Load):
    """A retention that lets the tables become steady soon."""

    dispatch = "benchmarks.workers.perfectqueue.SoakDispatch"
    options = {"RETENTION": {"*": RETENTION, "failed": RETENTION}, "USAGE_TIME": RETENTION}


class Soak(Live):
    """``samples`` of the job is a file, so that a soak that is cut short leaves what it saw."""

    load_kind = Soaked
    patience = 60.0

    def measured(self) -> dict[str, Any]:
        """Work and rest for so long; return the samples, and what became of the tasks."""
        job, environment = self.job, self.environment
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
                environment.require(workers)
                if now >= next_portion:
                    next_portion = max(now, next_portion + EVERY)
                    if is_busy(now - began):
                        submitted += self.submit(next(coming))
                if now >= next_sample:
                    next_sample = max(now, next_sample + SAMPLE_EVERY)
                    used = resources_of(workers.pids, environment.target, link)
                    samples.append({"at": now - began, **used})
                    with open(job.samples, "a") as file:
                        print(json.dumps(samples[-1]), file=file)
                time.sleep(max(0.0, min(next_portion, next_sample) - time.monotonic()))
            self.wait(lambda: not self.load.pending(), "The end of all tasks")
            processor_time = workers.processor_time()
        return {"samples": samples, "submitted": submitted, "processor_time": processor_time}

    def submit(self, portion: Portion) -> int:
        self.load.queue.submit_many(portion.tasks)
        for key in portion.cancelled:
            self.load.queue[key].cancel_request()
        return len(portion.tasks)


if __name__ == "__main__":
    Soak.answer()
