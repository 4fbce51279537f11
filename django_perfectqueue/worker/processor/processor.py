"""A process that acquires and runs tasks."""

from __future__ import annotations

import logging
import os
import time

from django_perfectqueue.tracing import otel

from ..attempt import surroundings
from ..plan import Plan
from ..process.signals import REOPEN_LOGS, RESTART_NOW, STOP_NOW, take_signals
from ..report import Reporter
from .executors import Coroutines, Executor, MainThread, ThreadPool
from .feeder import Feeder
from .leases import ProcessorResources
from .monitor import Monitor
from .state import SharedState

logger = logging.getLogger("django_perfectqueue.processor")

EXECUTORS: dict[str, type[Executor]] = {
    "process": MainThread,
    "thread": ThreadPool,
    "async": Coroutines,
}


class Processor(SharedState):
    """
    Runs due tasks: a feeder acquires them and writes their completions, an executor runs them, and
    a monitor watches.
    """

    def __init__(self, plan: Plan, resources: ProcessorResources, reporter: Reporter) -> None:
        super().__init__(plan, resources, reporter)
        self.executor = EXECUTORS[plan.options.PROCESSOR_TYPE](self)
        self.feeder = Feeder(self, self.executor)
        self.monitor = Monitor(self, self.executor.remind)

    def run(self) -> int:
        """Work until a stop, a recycling, or in a burst until nothing is due."""
        self.executor.open()
        self.accounts.sign_on(time.monotonic())
        take_signals(self.on_signal)
        surroundings.begin(self.options.LOG_CAPTURE)
        self.plan.dispatch.after_fork()
        self.monitor.start()
        try:
            return self.executor.run(self.feeder.run)
        finally:
            self.close()

    def on_signal(self, signum: int, frame: object) -> None:
        if signum == REOPEN_LOGS:
            self.monitor.logs_moved = True
        else:
            self.stop(now=signum in (STOP_NOW, RESTART_NOW))
        self.monitor_wakeup.wake()

    def close(self) -> None:
        """Stop the threads."""
        self.monitor.stop()
        self.event_loop.close()
        surroundings.end()
        self.plan.dispatch.after_child_end()
        if self.options.TRACING:
            otel.flush()
        self.status.signed_off = True
        logger.debug("A processor ends. pid=%s", os.getpid())
