"""huey: ``huey_consumer`` with processes; at most once."""

from __future__ import annotations

from .base import Peer, script


class Huey(Peer):
    packages = ("huey", "peewee")
    table = "task"
    rows = {"waiting": {}}
    size = 0.5

    def prepare(self) -> None:
        from benchmarks.workers.huey import noop

        self.noop = noop

    def submit(self, index: int) -> None:
        self.noop(index)

    def workers(self, processes: int) -> list[list[str]]:
        queue = "benchmarks.workers.huey.huey"
        return [script("huey_consumer", queue, "-w", processes, "-k", "process")]
