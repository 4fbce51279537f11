"""Thousands of processors of a worker that die in every way: ``python -m benchmarks.deaths``."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.command import EPILOG, SPARE, Record, RunCommand, count, run
from benchmarks.database import Target
from benchmarks.environment import Live, Workers
from benchmarks.peers.perfectqueue import Load
from benchmarks.report import listed
from tests.databases.lifetime import children

LONGEST = 1.0
"""Seconds that a death may take."""
NAMES = {
    "processes": "processes of the worker",
    "files": "open files of the supervisor",
    "threads": "threads of the supervisor",
    "memory_kib": "anonymous memory of the supervisor, KiB",
    "folder": "sockets in the folder of NOTIFY",
}
ALLOWED = {"memory_kib": 256.0}
"""What may be more at the end; the allocator keeps some memory that it has had."""
CAUSES = {
    "kill": 30,
    "count": 200,
    "exit": 15,
    "overtime": 6,
    "silent": 1,
    "grow": 1,
}
STOCK = 20
BORN = "born"
WARM_UP = 1_000
HELPER_EVERY = 50
SAMPLE_EVERY = 500
STEP = 0.02
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


class Dying(Load):
    """Tasks most of which end their processor."""

    dispatch = "benchmarks.workers.perfectqueue.DeathsDispatch"
    constants = CONSTANTS

    def __init__(self, target: Target, job: Any, folder: Path) -> None:
        super().__init__(target, job, folder / "sockets")
        self.folder.mkdir()
        self.options = {**SETTINGS, "NOTIFY": str(self.folder)}
        self.chance = random.Random(job.seed)
        self.causes: list[str] = []

    def task_of(self, index: int) -> dict[str, Any]:
        [cause] = self.chance.choices(list(CAUSES), list(CAUSES.values()))
        self.causes.append(cause)
        return {"key": f"{cause}-{index}", "type": cause, "data": {"i": index}}


class Run(Live):
    """Feeds a worker until so many of its processors have died, and samples its supervisor."""

    load_kind = Dying
    workers: Workers

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        super().__init__(job, folder)
        self.counts: Counter[str] = Counter()
        self.chance = random.Random(self.job.seed)
        self.killed = 0

    def measured(self) -> dict[str, Any]:
        """Have so many processors die; return the samples, and of what they died."""
        self.environment.prepare(self.job.processors)
        began = time.monotonic()
        with self.environment.workers(self.job.processors) as self.workers:
            samples = list(self.samples())
            self.end(self.workers)
        counts = self.begun()
        return {
            "samples": samples,
            "begun": {cause: counts[cause] for cause in CAUSES},
            "killed": self.killed,
            "seconds": time.monotonic() - began,
        }

    def samples(self) -> Iterator[dict[str, float]]:
        """Yield how it stands after the first deaths, now and then, and after the last."""
        counts = (*range(0, self.job.deaths, SAMPLE_EVERY), self.job.deaths)
        for deaths in counts:
            self.feed_until(WARM_UP + deaths)
            yield self.settled()

    def deaths(self) -> int:
        return max(0, self.begun()[BORN] - self.job.processors)

    def begun(self) -> Counter[str]:
        """Return how many processors were born, and how many tasks of each cause began."""
        fresh = self.environment.probe.read()[self.counts.total() :]
        causes = self.load.causes
        self.counts.update(BORN if start.task < 0 else causes[start.task] for start in fresh)
        return self.counts

    def feed_until(self, deaths: int) -> None:
        last = self.deaths()

        def reached() -> bool:
            self.environment.require(self.workers)
            self.load.top_up(self.counts.total() - self.counts[BORN], STOCK)
            self.kill_one()
            time.sleep(STEP)
            return self.deaths() > last

        while last < deaths:
            self.wait(reached, "The next death")
            last = self.deaths()

    def kill_one(self) -> None:
        """
        Kill any child of the supervisor now and then: the janitor, the listener, or who gives
        tasks back, which then come back with their leases.
        """
        if self.deaths() // HELPER_EVERY > self.killed:
            self.killed += 1
            chosen = self.chance.choice(children(self.supervisor))
            processes.signal_all([chosen], signal.SIGKILL)

    @property
    def supervisor(self) -> int:
        [supervisor] = children(self.workers.pids[0])
        return supervisor

    def settled(self) -> dict[str, float]:
        """Return what is in use once nothing waits and every place is taken."""
        self.wait(lambda: not self.load.pending(), "The end of all tasks")
        self.wait(self.is_quiet, "A worker with all its processes")
        return {
            "deaths": float(self.deaths()),
            "processes": float(len(processes.family(self.workers.pids))),
            "files": float(processes.entries(self.supervisor, "fd")),
            "threads": float(processes.entries(self.supervisor, "task")),
            # What it has and no file: what a leak would add to.
            "memory_kib": processes.memory_of(self.supervisor, "Anonymous"),
            "folder": float(len(list(self.load.folder.rglob("*")))),
        }

    def is_quiet(self) -> bool:
        """Return whether for a second the supervisor had the children that it should have."""
        wanted = self.job.processors + 1
        before = set(children(self.supervisor))
        time.sleep(1.0)
        return len(before) == wanted and before == set(children(self.supervisor))


class Deaths(RunCommand):
    part = "benchmarks.deaths:Run.run"
    name = "deaths"
    about = "Have processors of a worker die in every way, and see whether anything grows."
    epilog = EPILOG + "It ends with 1 when something grows."

    def add_options(self, option: Callable[..., Any]) -> None:
        option("--deaths", type=count, default=10_000, help="how many; 10000")
        option("--processors", type=count, default=2, help="2")
        option("--seed", type=int, default=1, help="draws of what they die; 1")

    def patience(self, terms: Record) -> float:
        return float(terms["deaths"] * LONGEST + SPARE)

    def wrong(self, record: Record) -> Sequence[str]:
        return [f"{name} grows" for name in grown(record["samples"])]

    def table(self, run: Record) -> str:
        samples = run["samples"]
        first, last, grows = samples[0], samples[-1], grown(samples)
        begun = ", ".join(f"{cause} {count:,}" for cause, count in run["begun"].items())
        columns: dict[str, Callable[[str], str]] = {
            "Figure": lambda name: NAMES[name],
            f"after {first['deaths']:,.0f}": lambda name: f"{first[name]:,.0f}",
            "most": lambda name: f"{max(sample[name] for sample in samples):,.0f}",
            "at the end": lambda name: f"{last[name]:,.0f}",
            "": lambda name: "grows" if name in grows else "flat",
        }
        return (
            f"{run['database']}: {last['deaths']:,.0f} deaths in {run['seconds']:,.0f} s,"
            f" {run['terms']['processors']} processors, {run['killed']} more processes killed\n"
            f"Tasks begun: {begun}\n\n{listed(NAMES, columns)}"
        )


def grown(samples: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the figures that are greater at the end than after the first deaths."""
    first, last = samples[0], samples[-1]
    return [name for name in NAMES if last[name] > first[name] + ALLOWED.get(name, 0.0)]


if __name__ == "__main__":
    run(Deaths())
