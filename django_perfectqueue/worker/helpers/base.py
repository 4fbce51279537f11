"""The base class of helpers, and the process in which some of them run."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
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
SWITCH_INTERVAL = 0.0005


class Helper:
    """
    Work that serves all processors of a supervisor, in a thread of its own.

    It ends at any stop signal of its process, and when the supervisor dies, which closes
    ``parent_alive``.
    """

    parent_alive = -1

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.wakeup = Wakeup()
        self.stopping = False
        self.orphaned = False
        self.link = Link(plan.using, self.wakeup, self.patience, outage=plan.outage)

    def work(self) -> None:
        """Do the work of the helper until it stops."""
        raise NotImplementedError

    def stop(self) -> None:
        self.stopping = True
        self.wakeup.wake()

    def patience(self) -> float:
        return LAST_TRIES if self.stopping else float("inf")

    def wait(self, seconds: float, *files: HasFileno) -> None:
        """Wait up to ``seconds``, for a stop, or until one of the files is readable."""
        output.push()
        numbers = [file.fileno() for file in files]
        if self.parent_alive in readable(
            [self.wakeup.read_fd, self.parent_alive, *numbers], seconds
        ):
            self.stopping = self.orphaned = True
        self.wakeup.wait(0)


class HelperProcess:
    """
    The process of some helpers, which fails as soon as one of them does.

    Its main thread handles signals, sends heartbeats, also while the helpers wait for the
    database, and checks their calls.
    """

    def __init__(self, plan: Plan, helpers: Sequence[Helper]) -> None:
        self.plan = plan
        self.helpers = helpers
        self.watchdog = Watchdog([helper.link for helper in helpers], plan.timeout)
        self.ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self.logs_moved = False

    def run(self, heartbeat_w: int, parent_alive: int) -> int:
        keep_few_statements(self.plan.using)
        # One helper may compute while a notification for another arrives.
        sys.setswitchinterval(SWITCH_INTERVAL)
        for helper in self.helpers:
            helper.parent_alive = parent_alive
            threading.Thread(target=self.help, args=(helper,), daemon=True).start()
        # The other threads began while the signals were blocked, and keep them so.
        take_signals(self.on_signal)
        left = len(self.helpers)
        interval = min(WATCH_INTERVAL, self.plan.options.CHILD_HEARTBEAT_INTERVAL)
        while left:
            self.watch(heartbeat_w)
            with contextlib.suppress(Empty):
                if error := self.ended.get(timeout=interval):
                    raise error
                left -= 1
        return 0

    def help(self, helper: Helper) -> None:
        """Be a thread of this process."""
        error = None
        try:
            with contextlib.suppress(AwayError):
                helper.work()
            connections.close_all()
        except BaseException as raised:
            error = raised
        self.ended.put(error)

    def watch(self, heartbeat_w: int) -> None:
        if self.logs_moved:
            self.logs_moved = False
            reopen_logs()
        with contextlib.suppress(OSError):
            os.write(heartbeat_w, b".")
        try:
            self.watchdog.look(time.monotonic())
        except Exception:
            logger.exception("The connection watchdog raised an exception and continues.")

    def on_signal(self, signum: int, frame: object) -> None:
        if signum == REOPEN_LOGS:
            # Not here: the handler may interrupt what logs.
            self.logs_moved = True
            return
        for helper in self.helpers:
            helper.stop()
