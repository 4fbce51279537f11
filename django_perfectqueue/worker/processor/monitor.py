"""The thread that monitors a processor while handlers run."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from django_perfectqueue.exceptions import ProcessStopError, TimeLimitError
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.lib.processes import kill_own_tree

from ..attempt.running import Running
from ..database.link import Link
from ..database.watchdog import Watchdog
from ..plan import Plan
from ..process import output
from ..process.signals import reopen_logs
from ..process.wakeup import Wakeup, drain, readable
from .leases import Leases
from .resources import ProcessorResources

logger = logging.getLogger("django_perfectqueue.monitor")

TICK = 0.05
JOIN_TIMEOUT = 10.0


class MonitoredProcessor(Protocol):
    """The parts of a processor that its monitor uses."""

    stop_reason: type[ProcessStopError] | None

    def stop(self) -> None: ...

    def is_busy(self) -> bool:
        """Return whether a handler runs, or something waits to be run or written."""

    def remind(self, now: float) -> None:
        """Repeat interrupts that did not reach their handlers; wake the feeder if it is late."""


class Monitor:
    """
    The monitor of a processor.

    It sends heartbeats to the supervisor, enforces time limits, interrupts handlers at a stop
    or when their leases have expired, and notices the death of the supervisor. It makes no
    database calls.
    """

    def __init__(
        self,
        processor: MonitoredProcessor,
        plan: Plan,
        leases: Leases,
        links: Sequence[Link],
        resources: ProcessorResources,
    ) -> None:
        self.processor = processor
        self.plan = plan
        self.leases = leases
        self.slot = leases.slot
        self.running = leases.hand.running
        self.heartbeat_w = resources.heartbeat_w
        self.parent_alive = resources.parent_alive
        self.wakeup = Wakeup()
        self.watchdog = Watchdog(links, plan.timeout)
        self.interval = plan.options.CHILD_HEARTBEAT_INTERVAL
        self.next_beat = 0.0
        self.waiting = False
        self.ended = False
        self.orphaned = False
        self.logs_moved = False
        self.thread = threading.Thread(target=self.run, name="monitor", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.ended = True
        self.wakeup.wake()
        self.thread.join(JOIN_TIMEOUT)

    def wake(self) -> None:
        """End the wait of an idle monitor: a handler starts."""
        if self.waiting:
            self.wakeup.wake()

    def run(self) -> None:
        while not self.ended:
            try:
                self.tick(time.monotonic())
            except Exception:
                logger.exception("The monitor thread raised an exception and continues.")
            self.wait()

    def wait(self) -> None:
        self.waiting = True
        until_beat = max(0.0, self.next_beat - time.monotonic())
        pause = min(TICK, until_beat) if self.processor.is_busy() else until_beat
        files = [self.wakeup.read_fd] if self.orphaned else [self.wakeup.read_fd, self.parent_alive]
        ready = readable(files, pause)
        self.waiting = False
        if self.wakeup.read_fd in ready:
            drain(self.wakeup.read_fd)
        if self.parent_alive in ready and drain(self.parent_alive) is None:
            self.orphan()

    def orphan(self) -> None:
        self.orphaned = True
        logger.error(
            "The supervisor is gone; this processor ends with its task. pid=%s", os.getpid()
        )
        self.processor.stop()

    def tick(self, now: float) -> None:
        self.beat(now)
        output.push()
        self.watchdog.look(now)
        if self.logs_moved:
            self.logs_moved = False
            reopen_logs()
        if reason := self.processor.stop_reason:
            for running in self.running():
                running.kill(reason("The processor stops."))
        for running in self.running():
            self.enforce_limits(running, now)
        if self.leases.have_expired(now):
            self.leases.preempt_all()
        self.processor.remind(now)

    def beat(self, now: float) -> None:
        if now >= self.next_beat:
            self.next_beat = now + self.interval
            try:
                os.write(self.heartbeat_w, b".")
            except BlockingIOError:
                pass
            except OSError:
                if not self.orphaned:
                    self.orphan()

    def beat_at_once(self) -> None:
        """Send a heartbeat now, so that the supervisor reads the slot."""
        self.next_beat = 0.0
        self.wakeup.wake()

    def enforce_limits(self, running: Running, now: float) -> None:
        """Interrupt a handler beyond its time limit; without a supervisor, kill the process."""
        task = running.task
        if not running.active:
            self.slot.returned(task.lease.task_id)
            return
        limit, _wait = self.plan.time_limits(task.lease)
        if now - task.started >= limit:
            reason = f"Task '{task.key}' has run for longer than its time limit of {limit:g} s."
            self.leases.interrupt(running, TimeLimitError(reason))
        if self.orphaned and self.slot.overdue(now):
            logger.error(
                "A handler exceeds its time limit; its process ends. key=%s",
                printable(task.key),
            )
            kill_own_tree()
