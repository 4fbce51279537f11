"""
Thousands of processors that die in every way, on one database, in a process of its own:
``python -m benchmarks.soak.deaths JOB RESULT``.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.child import answer
from benchmarks.database import Target, this_target
from benchmarks.environment import Environment, StuckError, Workers
from benchmarks.peers.perfectqueue import Load
from benchmarks.recorder import Reader
from benchmarks.scale import Scale
from tests.databases.lifetime import children

from .resources import files, threads

CAUSES = {
    "kill": 30,
    "count": 200,
    "exit": 15,
    "replace": 10,
    "overtime": 6,
    "silent": 1,
    "grow": 1,
}
BORN = "born"
"""The event of a new processor; the others are the types of tasks that have begun."""
STOCK = 20
WARM_UP = 1_000
HELPERS = len(("janitor", "listener"))
HELPER_EVERY = 50
SAMPLE_EVERY = 500
STEP = 0.02
PATIENCE = 120.0
RETENTION = 30
SETTINGS = {
    "ALIVE_TIME": 20,
    "MAX_CRASHES": 1,
    "MAX_ATTEMPTS": 1,
    "RECYCLE": {"tasks": 5, "memory": 200},
    "CHILD_HEARTBEAT_LIMIT": 3,
    "RETENTION": {"*": RETENTION, "failed": RETENTION},
    "USAGE_TIME": RETENTION,
}
CONSTANTS = {
    "CHILD_HEARTBEAT_INTERVAL": 0.2,
    "CHILD_KILL_INTERVAL": 0.05,
    "CHILD_FORK_FREQUENCY_LIMIT": 0,
}


@dataclass(frozen=True)
class Job:
    deaths: int
    processors: int
    seed: int


class Dying(Load):
    """Tasks most of which end their processor."""

    dispatch = "benchmarks.workers.perfectqueue.DeathsDispatch"
    constants = CONSTANTS

    def __init__(self, target: Target, job: Job, folder: Path) -> None:
        super().__init__(target)
        self.options = {**SETTINGS, "NOTIFY": str(folder)}
        self.job = job
        self.folder = folder
        self.chance = random.Random(job.seed)
        self.submitted = 0

    def top_up(self, begun: int) -> None:
        """Have about so many tasks wait that no processor lacks one."""
        if self.submitted - begun >= STOCK:
            return
        causes = self.chance.choices(list(CAUSES), list(CAUSES.values()), k=STOCK)
        self.queue.submit_many(
            {"key": f"{cause}-{number}", "type": cause}
            for number, cause in enumerate(causes, start=self.submitted)
        )
        self.submitted += STOCK


class Run:
    """Feeds a worker until so many of its processors have died, and samples its supervisor."""

    def __init__(self, environment: Environment, peer: Dying, workers: Workers, job: Job) -> None:
        self.environment = environment
        self.peer = peer
        self.workers = workers
        self.job = job
        self.reader = Reader()
        self.counts: Counter[str] = Counter()
        self.chance = random.Random(job.seed)
        self.killed = 0

    def samples(self) -> Iterator[dict[str, float]]:
        """Yield how it stands after the first deaths, now and then, and after the last."""
        counts = (*range(0, self.job.deaths, SAMPLE_EVERY), self.job.deaths)
        for deaths in counts:
            self.feed_until(WARM_UP + deaths)
            yield self.settled()

    def deaths(self) -> int:
        return max(0, self.begun()[BORN] - self.job.processors)

    def begun(self) -> Counter[str]:
        """Return how many processors were born, and how many tasks of each type began."""
        self.counts.update(event["event"] for event in self.reader.read())
        return self.counts

    def feed_until(self, deaths: int) -> None:
        last = self.deaths()

        def reached() -> bool:
            if self.workers.have_ended():
                raise StuckError(
                    f"The worker has ended by itself.\n{self.environment.end_of_log()}"
                )
            self.peer.top_up(self.counts.total() - self.counts[BORN])
            self.kill_one()
            time.sleep(STEP)
            return self.deaths() > last

        while last < deaths:
            self.environment.wait_for(reached, PATIENCE, "The next death")
            last = self.deaths()

    def kill_one(self) -> None:
        """
        Kill any child of the supervisor now and then: the janitor, the listener, or who gives
        tasks back, which then come back with their leases.
        """
        if self.deaths() // HELPER_EVERY > self.killed:
            self.killed += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.chance.choice(children(self.supervisor)), signal.SIGKILL)

    @property
    def supervisor(self) -> int:
        [supervisor] = children(self.workers.pids[0])
        return supervisor

    def settled(self) -> dict[str, float]:
        """Return what is in use once nothing waits and every place is taken."""
        self.environment.wait_for(lambda: not self.peer.pending(), PATIENCE, "The end of all tasks")
        self.environment.wait_for(self.is_quiet, PATIENCE, "A worker with all its processes")
        return {
            "deaths": float(self.deaths()),
            "processes": float(len(processes.family(self.workers.pids))),
            "files": float(files(self.supervisor)),
            "threads": float(threads(self.supervisor)),
            "memory_kib": own_memory(self.supervisor),
            "folder": float(len(list(self.peer.folder.rglob("*")))),
        }

    def is_quiet(self) -> bool:
        """Return whether for a second the supervisor had the children that it should have."""
        wanted = self.job.processors + HELPERS
        before = set(children(self.supervisor))
        time.sleep(1.0)
        return len(before) == wanted and before == set(children(self.supervisor))


def own_memory(pid: int) -> float:
    """Return the KiB that this process has and no file: what a leak would add to."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    [anonymous] = (line.split()[1] for line in lines if line.startswith("Anonymous:"))
    return float(anonymous)


def died(environment: Environment, peer: Dying, job: Job) -> dict[str, Any]:
    """Have so many processors die; return the samples, and of what they died."""
    environment.prepare(job.processors)
    began = time.monotonic()
    with environment.workers(job.processors) as workers:
        run = Run(environment, peer, workers, job)
        samples = list(run.samples())
        workers.processes[0].terminate()
        environment.wait_for(workers.have_ended, PATIENCE, "The end of the worker")
    counts = run.begun()
    return {
        "samples": samples,
        "begun": {cause: counts[cause] for cause in CAUSES},
        "killed": run.killed,
        "seconds": time.monotonic() - began,
        "left": sorted(str(path.name) for path in peer.folder.rglob("*")),
    }


def measure(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    of, target, sockets = Job(**job), this_target(), folder / "sockets"
    sockets.mkdir()
    peer = Dying(target, of, sockets)
    return died(Environment(peer, target, folder, Scale()), peer, of)


if __name__ == "__main__":
    answer(measure)
