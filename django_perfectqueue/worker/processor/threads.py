"""A processor that runs each of its tasks in a thread."""

from __future__ import annotations

from ..plan import Plan
from ..report import Reporter
from .concurrent import ConcurrentProcessor
from .processor import ProcessorResources
from .thread_pool import ThreadPool


class ThreadProcessor(ConcurrentProcessor):
    """Runs tasks in a pool of threads; each thread takes its next task itself."""

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
