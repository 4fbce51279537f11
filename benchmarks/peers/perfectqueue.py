"""This package: ``pq_worker`` with its default settings, fair shares on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.database import Target

from .base import DjangoPeer, manage

DISPATCH = "benchmarks.workers.perfectqueue.NoopDispatch"


class PerfectQueue(DjangoPeer):
    """
    ``type`` is ``noop``, or ``each`` for a handler that finishes its task by itself, which
    is then in a commit of its own. ``users`` is how many users the tasks run for.
    """

    apps = ("django_perfectqueue",)
    persistent = False
    size = 2.0

    def __init__(self, target: Target, *, type: str = "noop", users: int = 0) -> None:
        super().__init__(target)
        self.type = type
        self.users = users

    def prepare(self) -> None:
        super().prepare()
        from django_perfectqueue.queue import Queue

        self.queue = Queue()

    def submit(self, index: int) -> None:
        self.queue.submit(**self.task_of(index))

    def submit_many(self, indexes: Sequence[int]) -> None:
        self.queue.submit_many(map(self.task_of, indexes))

    def task_of(self, index: int) -> dict[str, Any]:
        """Return a task as Queue.submit_many() takes it."""
        user = f"user-{index % self.users}" if self.users else None
        return {"key": f"task-{index}", "type": self.type, "data": {"i": index}, "user": user}

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("pq_worker", DISPATCH, "--processors", processes)]

    def pending(self) -> int:
        return len(self.queue)


class Load(PerfectQueue):
    """This package with handlers and settings of its own, for a run on a real worker."""

    dispatch = DISPATCH
    options: Mapping[str, Any] = {}
    constants: Mapping[str, Any] = {}

    def __init__(self, target: Target, job: Any = None, folder: Path | None = None) -> None:
        super().__init__(target)
        self.job = job
        self.folder = folder
        self.submitted = 0

    def top_up(self, begun: int, stock: int) -> None:
        """Where fewer wait than so many, submit as many more."""
        if self.submitted - begun < stock:
            self.submit_many(range(self.submitted, self.submitted + stock))
            self.submitted += stock

    def settings(self, processes: int) -> dict[str, Any]:
        return {"PERFECTQUEUE": self.options, "constants": self.constants}

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("pq_worker", self.dispatch, "--processors", processes, "--verbosity", 0)]
