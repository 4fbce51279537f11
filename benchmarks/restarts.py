"""A worker that is restarted again and again under load: ``python -m benchmarks.restarts``."""

from __future__ import annotations

import os
import random
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import EPILOG, Record, RunCommand, count, from_on, run
from benchmarks.environment import Live, StuckError, Workers
from benchmarks.peers.perfectqueue import Load
from benchmarks.probe import Start
from benchmarks.report import listed

COLUMNS: dict[str, Callable[[Record], Any]] = {
    "": lambda one: f"{one['database']}, {one['terms']['processors']}",
    "restarts": lambda one: one["restarts"],
    "tasks": lambda one: f"{one['tasks']:,}",
    "lost": lambda one: one["lost"] + one["unfinished"],
    "run twice": lambda one: one["twice"] + one["attempts"],
    "longest without a processor ms": lambda one: f"{one['unattended'] * 1e3:.0f}",
    "tasks a second before": lambda one: f"{one['usual']:.0f}",
    "lowest before": lambda one: one["lowest_before"],
    "median": lambda one: f"{one['median']:.0f}",
    "lowest": lambda one: one["lowest"],
    "lowest %": lambda one: f"{one['lowest_part'] * 100:.0f}",
    "a restart takes s": lambda one: f"{one['took']:.2f}",
    "at most s": lambda one: f"{one['took_longest']:.2f}",
}
BAD = ("lost", "unfinished", "twice", "attempts", "unattended")
SECONDS = 0.02
STOCK = 100
USERS = 10
PAUSE = (0.2, 0.8)
STEP = 0.02
FIRST_SECONDS = 1.0
"""How much of the time before the restarts is left out: caches fill, paces are found."""


# The run


class Naps(Load):
    """Tasks that sleep for a moment."""

    dispatch = "benchmarks.workers.perfectqueue.SleepDispatch"
    options = {"RETENTION": {"*": None}}

    def task_of(self, index: int) -> dict[str, Any]:
        data = {"i": index, "seconds": SECONDS, "releases": 0}
        user = f"user-{index % USERS}"
        return {"key": str(index), "type": "sleep", "user": user, "data": data}


class Manager:
    """A service manager, which the worker notifies when it is ready."""

    def __init__(self, folder: Path) -> None:
        path = folder / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        os.environ["NOTIFY_SOCKET"] = str(path)
        self.count = 0

    def ready(self) -> int:
        """Return how often it was ready so far; raise StuckError when a restart failed."""
        try:
            while True:
                message = self.socket.recv(4096).decode()
                if "failed" in message:
                    raise StuckError(f"A restart failed: {message}")
                self.count += "READY=1" in message.splitlines()
        except BlockingIOError:
            return self.count


class Run(Live):
    load_kind = Naps

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        super().__init__(job, folder)
        self.manager = Manager(folder)
        self.drawn = random.Random(self.job.seed)

    def measured(self) -> dict[str, Any]:
        self.environment.prepare(self.job.processors)
        self.top_up()
        self.environment.analyze()
        with self.environment.workers(self.job.processors) as workers:
            self.feed_until(lambda: self.manager.ready() == 1, "The worker")
            began = time.monotonic()
            self.feed_for(self.job.before)
            restarts = [self.restart(workers, number) for number in range(self.job.times)]
            self.wait(lambda: not self.load.pending(), "The last task")
            self.end(workers)
        notes = self.environment.probe.read()
        found = audited(notes, restarts, submitted=self.load.submitted, began=began)
        return {**found, **self.reported_by_rows()}

    def top_up(self) -> None:
        """Have so many tasks wait that no processor lacks one."""
        # Each has noted its end, too.
        ended = self.environment.probe.count() // 2
        self.load.top_up(ended, STOCK * self.job.processors)

    def restart(self, workers: Workers, number: int) -> Restart:
        asked = time.monotonic()
        workers.processes[0].send_signal(signal.SIGUSR1)
        self.feed_until(lambda: self.manager.ready() == number + 2, f"Restart {number + 1}")
        done = time.monotonic()
        self.feed_for(self.drawn.uniform(*PAUSE))
        return Restart(asked, done)

    def feed_until(self, condition: Callable[[], bool], what: str) -> None:
        def reached() -> bool:
            self.top_up()
            return condition()

        self.wait(reached, what)

    def feed_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.top_up()
            time.sleep(STEP)

    def reported_by_rows(self) -> dict[str, int]:
        """Return what the database says of tasks that did not finish, or not at once."""
        from django_perfectqueue.models import Attempt, Task

        unfinished = Task.objects.exclude(outcome="finished").count()
        return {"unfinished": unfinished, "attempts": Attempt.objects.count()}


# Whether it went unnoticed, from when processors began tasks


@dataclass(frozen=True)
class Restart:
    """When it was asked for, and when the new generation had taken over."""

    asked: float
    done: float


def audited(
    notes: Sequence[Start], restarts: Sequence[Restart], *, submitted: int, began: float
) -> dict[str, Any]:
    """Return the figures of a run; the restarts are those that have been done."""
    first, last = restarts[0].asked, restarts[-1].done
    starts = [note for note in notes if note.task >= 0]
    ended = {~note.task for note in notes if note.task < 0}
    moments = sorted(start.at / 1e9 for start in starts)
    before = per_second(moments, began + FIRST_SECONDS, first)
    during = per_second(moments, first, last)
    usual = statistics.median(before)
    alone = uncovered(tenures(notes), first, last)
    took = [one.done - one.asked for one in restarts]
    return {
        "restarts": len(restarts),
        "tasks": submitted,
        "lost": submitted - len(ended),
        "twice": len(starts) - len({start.task for start in starts}),
        "unattended": max((end - begin for begin, end in alone), default=0.0),
        "usual": usual,
        "lowest_before": min(before),
        "lowest": min(during),
        "median": statistics.median(during),
        "lowest_part": min(during) / usual,
        "took": statistics.median(took),
        "took_longest": max(took),
    }


def tenures(notes: Iterable[Start]) -> list[tuple[float, float]]:
    """Return from when to when each processor was at work: until its last task ended."""
    found: dict[int, tuple[float, float]] = {}
    for note in sorted(notes, key=lambda one: one.at):
        at = note.at / 1e9
        found[note.pid] = (found.get(note.pid, (at, at))[0], at)
    return sorted(found.values())


def uncovered(
    spans: Iterable[tuple[float, float]], first: float, last: float
) -> list[tuple[float, float]]:
    """Return the parts of the time from first to last that no span covers."""
    gaps, reached = [], first
    for since, until in sorted(spans):
        if since > reached:
            gaps.append((reached, min(since, last)))
        reached = max(reached, until)
        if reached >= last:
            return gaps
    return [*gaps, (reached, last)]


def per_second(moments: Iterable[float], first: float, last: float) -> list[int]:
    """Return how many tasks began in each whole second from first to last."""
    counts = [0] * max(1, int(last - first))
    for moment in moments:
        second = int((moment - first) // 1)
        if 0 <= second < len(counts):
            counts[second] += 1
    return counts


class Restarts(RunCommand):
    part = "benchmarks.restarts:Run.run"
    name = "restarts"
    about = "Restart a worker under load, and find out whether anyone could notice."
    epilog = EPILOG + (
        "It ends with 1 when a task was lost or run twice, or when for a moment nobody was at work."
    )

    def add_options(self, option: Callable[..., Any]) -> None:
        seconds = from_on(2, "seconds")
        option("--times", type=count, default=50, help="how often to restart; %(default)s")
        option("--processors", type=count, default=4, help="how many; %(default)s")
        option("--before", type=seconds, default=10.0, help="seconds before the first restart; 10")
        option("--seed", type=int, default=1, help="draws the pauses; %(default)s")

    def summary(self, record: Record) -> str:
        return (
            f"{record['restarts']} restarts, {record['tasks']:,} tasks,"
            f" lowest second {record['lowest_part'] * 100:.0f} %"
        )

    def wrong(self, record: Record) -> Sequence[str]:
        """Return whether a task was lost or run twice, or nobody was at work for a moment."""
        return [name for name in BAD if record[name]]

    def tables(self, runs: Sequence[Record]) -> Sequence[str]:
        return [listed(runs, COLUMNS)]


if __name__ == "__main__":
    run(Restarts())
