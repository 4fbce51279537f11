"""
One run on a real worker and a real database, in a process of its own:
``python -m benchmarks.restarts.live JOB RESULT``.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.database import Target
from benchmarks.environment import Live, StuckError, Workers
from benchmarks.peers import perfectqueue as peers
from benchmarks.recorder import Reader

from .audit import BEGAN, Event, Restart, audited

SECONDS = 0.02
STOCK = 100
USERS = 10
PAUSE = (0.2, 0.8)
STEP = 0.02


class Load(peers.Load):
    """Tasks that sleep for a moment, and always more of them."""

    dispatch = "benchmarks.workers.perfectqueue.RecordedDispatch"
    options = {"RETENTION": {"*": None}}

    def __init__(self, target: Target, job: Any, folder: Path) -> None:
        super().__init__(target, job, folder)
        self.reader = Reader()
        self.events: list[Event] = []
        self.stock = STOCK * job.processors
        self.submitted = 0
        self.begun = 0

    def read(self) -> list[Event]:
        """Return all that processors have done so far."""
        fresh = [Event(**event) for event in self.reader.read()]
        self.events += fresh
        self.begun += sum(event.event == BEGAN for event in fresh)
        return self.events

    def top_up(self) -> None:
        self.read()
        while self.submitted - self.begun < self.stock:
            first = self.submitted
            self.submitted += self.stock
            self.queue.submit_many(
                {
                    "key": str(index),
                    "type": "recorded",
                    "user": f"user-{index % USERS}",
                    "data": {"i": index, "seconds": SECONDS},
                }
                for index in range(first, self.submitted)
            )


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
    load_kind = Load

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        super().__init__(job, folder)
        self.manager = Manager(folder)
        self.drawn = random.Random(self.job.seed)

    def measured(self) -> dict[str, Any]:
        self.environment.prepare(self.job.processors)
        self.load.top_up()
        self.environment.analyze()
        with self.environment.workers(self.job.processors) as workers:
            self.feed_until(lambda: self.manager.ready() == 1, "The worker")
            began = time.monotonic()
            self.feed_for(self.job.before)
            restarts = [self.restart(workers, number) for number in range(self.job.times)]
            self.wait(lambda: not self.load.pending(), "The last task")
            self.end(workers)
        found = audited(self.load.read(), restarts, submitted=self.load.submitted, began=began)
        return {**found, **self.reported_by_rows()}

    def restart(self, workers: Workers, number: int) -> Restart:
        asked = time.monotonic()
        workers.processes[0].send_signal(signal.SIGUSR1)
        self.feed_until(lambda: self.manager.ready() == number + 2, f"Restart {number + 1}")
        done = time.monotonic()
        self.feed_for(self.drawn.uniform(*PAUSE))
        return Restart(asked, done)

    def feed_until(self, condition: Callable[[], bool], what: str) -> None:
        def reached() -> bool:
            self.load.top_up()
            return condition()

        self.wait(reached, what)

    def feed_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.load.top_up()
            time.sleep(STEP)

    def reported_by_rows(self) -> dict[str, int]:
        """Return what the database says of tasks that did not finish, or not at once."""
        from django_perfectqueue.models import Attempt, Task

        unfinished = Task.objects.exclude(outcome="finished").count()
        return {"unfinished": unfinished, "attempts": Attempt.objects.count()}


if __name__ == "__main__":
    Run.answer()
