"""
One soak on one database, in a process of its own:
``python -m benchmarks.soak.live JOB RESULT``.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.database import Link, Target, connect
from benchmarks.environment import Live
from benchmarks.peers.perfectqueue import Load

from .load import Portion, is_busy, portions

EVERY = 0.5
SAMPLE_EVERY = 10.0
RETENTION = 60


TABLES = ("task", "ticket", "account", "lane", "attempt", "deadletter", "usage", "worker")
CONNECTIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mariadb": "SELECT count(*) FROM information_schema.processlist"
    " WHERE db = database() AND id <> connection_id()",
}
SIZE = {
    "postgresql": "SELECT pg_database_size(current_database())",
    "mariadb": "SELECT sum(data_length + index_length) FROM information_schema.tables"
    " WHERE table_schema = database()",
}


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


def resources_of(workers: list[int], target: Target, link: Link) -> dict[str, float]:
    """Return what is used, and how many rows there are, by name."""
    family = processes.family(workers)
    found = {
        "processes": float(len(family)),
        "memory_mib": processes.memory(workers),
        "files": float(sum(map(files, family))),
        "threads": float(sum(map(threads, family))),
        "database_mib": size(target, link) / 2**20,
    }
    if target.kind in CONNECTIONS:
        found["connections"] = float(link.value(CONNECTIONS[target.kind]))
    for table in TABLES:
        found[f"rows_{table}"] = float(link.value(f"SELECT count(*) FROM perfectqueue_{table}"))
    return found


def files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


def threads(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    return 0


def size(target: Target, link: Link) -> float:
    """Return the bytes that the database has on disk."""
    if target.kind in SIZE:
        return float(link.value(SIZE[target.kind]) or 0)
    path = Path(target.name)
    return float(sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")))


if __name__ == "__main__":
    Soak.answer()
