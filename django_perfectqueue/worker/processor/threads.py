"""A processor that runs each of its tasks in a thread."""

from __future__ import annotations

from ..plan import Plan
from ..report import Reporter
from .concurrent import ConcurrentProcessor
from .processor import ProcessorResources
from .thread_pool import ThreadPool


class ThreadProcessor(ConcurrentProcessor):
    """Runs as many tasks at once as it has threads; each takes the next by itself."""

    def __init__(self, plan: Plan, resources: ProcessorResources, reporter: Reporter) -> None:
        super().__init__(plan, resources, reporter)
        self.pool = ThreadPool(self, self.next_task)

    def hand_out(self) -> None:
        while running := self.next_task():
            self.pool.send(running)

    def stop(self, *, now: bool = False) -> None:
        super().stop(now=now)
        self.pool.wake()

    def dismiss(self) -> None:
        self.pool.close()
