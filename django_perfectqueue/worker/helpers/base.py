"""The base class of helper processes, and their periodic jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from django.db import connections

from ..database.link import AwayError, Link, Watchdog, keep_few_statements
from ..plan import Plan
from ..process import output
from ..process.signals import REOPEN_LOGS, Wakeup, readable, reopen_logs, take_signals

if TYPE_CHECKING:
    from _typeshed import HasFileno


logger = logging.getLogger("django_perfectqueue.watchdog")

LAST_TRIES = 2.0
WATCH_INTERVAL = 2.0


class HelperProcess:
    """
    A process that serves all processors of a supervisor.

    It ends at any stop signal, and when its supervisor dies, which closes ``parent_alive``.
    """

    parent_alive = -1

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.wakeup = Wakeup()
        self.stopping = False
        self.orphaned = False
        self.link = Link(plan.using, self.wakeup, self.patience, outage=plan.outage)
        self.watchdog = Watchdog([self.link], plan.timeout)
        self.logs_moved = False

    def run(self, heartbeat_w: int, parent_alive: int) -> int:
        self.parent_alive = parent_alive
        take_signals(self.on_signal)
        keep_few_statements(self.plan.using)
        threading.Thread(
            target=self.monitor, args=(heartbeat_w,), name="monitor", daemon=True
        ).start()
        with contextlib.suppress(AwayError):
            self.work()
        connections.close_all()
        return 0

    def monitor(self, heartbeat_w: int) -> None:
        """Send heartbeats, also while the process waits for the database, and check its calls."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            with contextlib.suppress(OSError):
                os.write(heartbeat_w, b".")
            try:
                self.watchdog.look(time.monotonic())
            except Exception:
                logger.exception("The connection watchdog raised an exception and continues.")
            time.sleep(min(WATCH_INTERVAL, self.plan.options.CHILD_HEARTBEAT_INTERVAL))

    def work(self) -> None:
        """Do the work of the helper until it stops."""
        raise NotImplementedError

    def on_signal(self, signum: int, frame: object) -> None:
        if signum == REOPEN_LOGS:
            self.logs_moved = True
        else:
            self.stopping = True
        self.wakeup.wake()

    def patience(self) -> float:
        return LAST_TRIES if self.stopping else float("inf")

    def wait(self, seconds: float, *files: HasFileno) -> None:
        """Wait up to ``seconds``, for a signal, or until one of the files is readable."""
        if self.logs_moved:
            self.logs_moved = False
            reopen_logs()
        output.push()
        numbers = [file.fileno() for file in files]
        if self.parent_alive in readable(
            [self.wakeup.read_fd, self.parent_alive, *numbers], seconds
        ):
            self.stopping = self.orphaned = True
        self.wakeup.wait(0)
