"""A process that acquires and runs tasks, and its thread that watches them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from django_perfectqueue.exceptions import TimeLimitError
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.lib.processes import kill_own_tree
from django_perfectqueue.tracing import otel

from ..attempt import surroundings
from ..attempt.surroundings import Running
from ..plan import Plan
from ..process import output, signals
from ..report import Reporter
from .executors import Coroutines, Executor, MainThread, ThreadPool
from .feeder import Feeder
from .leases import ProcessorResources
from .state import SharedState

logger = logging.getLogger("django_perfectqueue.processor")
monitor_logger = logging.getLogger("django_perfectqueue.monitor")

TICK = 0.05
JOIN_TIMEOUT = 10.0


class Monitor(threading.Thread):
    """
    The monitor of a processor.

    It sends heartbeats to the supervisor, enforces time limits, interrupts handlers at a stop
    or when their leases have expired, and notices the death of the supervisor. It makes no
    database calls.
    """

    def __init__(self, state: SharedState, remind: Callable[[], None]) -> None:
        super().__init__(name="monitor", daemon=True)
        self.state = state
        self.remind = remind
        self.ended = self.orphaned = self.logs_moved = False

    def stop(self) -> None:
        self.ended = True
        self.state.monitor_wakeup.wake()
        self.join(JOIN_TIMEOUT)

    def run(self) -> None:
        while not self.ended:
            try:
                self.tick(time.monotonic())
            except Exception:
                monitor_logger.exception("The monitor thread raised an exception and continues.")
            self.wait()

    def wait(self) -> None:
        state = self.state
        state.monitor_waits = True
        until_beat = max(0.0, state.next_beat - time.monotonic())
        pause = min(TICK, until_beat) if state.is_busy() else until_beat
        woken, parent = state.monitor_wakeup.read_fd, state.resources.parent_alive
        ready = signals.readable([woken] if self.orphaned else [woken, parent], pause)
        state.monitor_waits = False
        if woken in ready:
            signals.drain(woken)
        if parent in ready and signals.drain(parent) is None:
            self.orphan()

    def orphan(self) -> None:
        self.orphaned = True
        monitor_logger.error(
            "The supervisor is gone; this processor ends with its task. pid=%s", os.getpid()
        )
        self.state.stop()

    def tick(self, now: float) -> None:
        state = self.state
        self.beat(now)
        output.push()
        state.watchdog.look(now)
        if self.logs_moved:
            self.logs_moved = False
            signals.reopen_logs()
        for running in state.hand.running():
            if reason := state.stop_reason:
                running.kill(reason("The processor stops."))
            self.enforce_limits(running, now)
        if state.leases.have_expired(now):
            state.leases.preempt_all()
        self.remind()
        if state.is_late(now):
            state.wake()

    def beat(self, now: float) -> None:
        if now >= self.state.next_beat:
            self.state.next_beat = now + self.state.options.CHILD_HEARTBEAT_INTERVAL
            try:
                os.write(self.state.resources.heartbeat_w, b".")
            except BlockingIOError:
                pass
            except OSError:
                if not self.orphaned:
                    self.orphan()

    def enforce_limits(self, running: Running, now: float) -> None:
        """Interrupt a handler beyond its time limit; without a supervisor, kill the process."""
        task = running.task
        if not running.active:
            self.state.status.returned(task.lease.task_id)
            return
        limit, _wait = self.state.plan.time_limits(task.lease)
        if now - task.started >= limit:
            reason = f"Task '{task.key}' has run for longer than its time limit of {limit:g} s."
            self.state.leases.interrupt(running, TimeLimitError(reason))
        if self.orphaned and self.state.status.overdue(now):
            monitor_logger.error(
                "A handler exceeds its time limit; its process ends. key=%s",
                printable(task.key),
            )
            kill_own_tree()


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
        signals.take_signals(self.on_signal)
        surroundings.begin(self.options.LOG_CAPTURE)
        self.plan.dispatch.after_fork()
        self.monitor.start()
        try:
            return self.executor.run(self.feeder.run)
        finally:
            self.close()

    def on_signal(self, signum: int, frame: object) -> None:
        if signum == signals.REOPEN_LOGS:
            self.monitor.logs_moved = True
        else:
            self.stop(now=signum in (signals.STOP_NOW, signals.RESTART_NOW))
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
