"""The process that serves what no acquire does: clocks, sleeping lanes, and the old."""

from __future__ import annotations

import logging
import random
import signal
import time
from dataclasses import dataclass, field

from django.db import connections

from django_perfectqueue import store
from django_perfectqueue.store.purge import BATCH

from .bell import Bell, readable
from .database import AwayError, Link
from .plan import Plan
from .signals import ALL, REOPEN_LOGS, reopen_logs

logger = logging.getLogger("django_perfectqueue.janitor")

SWEEP_INTERVAL = 2.0
LAST_TRIES = 2.0
MOST_BATCHES = 200
MOSTLY_OVER = BATCH // 2
ENDED = ("finished", "failed", "cancelled", "expired")


class Janitor:
    """
    Answers alarms and deletes what retention lets go, in small batches.

    Processors do the former themselves when they acquire; but all may be busy for long.
    """

    def __init__(self, plan: Plan, *, lifeline: int) -> None:
        self.plan = plan
        self.lifeline = lifeline
        self.bell = Bell()
        self.stopping = False
        self.link = Link(plan.using, self.bell, self.patience)
        self.purge = Purge(plan)
        self.logs_moved = False

    def run(self) -> int:
        self.open_signals()
        next_purge = time.monotonic()
        try:
            while not self.stopping:
                self.link.insist(self.sweep)
                if time.monotonic() >= next_purge:
                    self.purge_some()
                    next_purge = time.monotonic() + self.plan.options.PURGE_INTERVAL
                self.wait(min(SWEEP_INTERVAL, self.plan.options.PURGE_INTERVAL))
        except AwayError:
            pass
        connections.close_all()
        return 0

    def open_signals(self) -> None:
        for signum in ALL:
            signal.signal(signum, self.on_signal)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*ALL, signal.SIGCHLD})

    def on_signal(self, signum: int, frame: object) -> None:
        if signum == REOPEN_LOGS:
            self.logs_moved = True
        else:
            self.stopping = True
        self.bell.ring()

    def patience(self) -> float:
        return LAST_TRIES if self.stopping else float("inf")

    def sweep(self) -> None:
        while store.answer_alarms(using=self.plan.using) and not self.stopping:
            pass
        store.rouse(using=self.plan.using)

    def purge_some(self) -> None:
        """Delete batch after batch, for no longer than half of the time there is."""
        deadline = time.monotonic() + self.plan.options.PURGE_INTERVAL / 2
        self.purge.begin()
        for _batch in range(MOST_BATCHES):
            if self.stopping or time.monotonic() > deadline:
                return
            if not self.link.insist(self.purge.batch):
                return

    def wait(self, seconds: float) -> None:
        if self.logs_moved:
            self.logs_moved = False
            reopen_logs()
        pause = seconds * random.uniform(0.7, 1.0)  # noqa: S311
        if self.lifeline in readable([self.bell.ear, self.lifeline], pause):
            self.stopping = True
        self.bell.wait(0)


@dataclass
class Purge:
    """
    Deletes with two hands.

    The front one goes up from the oldest task and stops where they begin to be too
    young. What it has passed, because it was alive then or is kept for longer, is left
    to the slow one, which goes round and round: a batch at a time, and on at once where
    most of what it finds is over, as after a backlog that was submitted at one go.
    """

    plan: Plan
    front: int = 0
    slow: int = 0
    at_front: bool = field(default=True, init=False)

    def begin(self) -> None:
        """Start a round: the slow hand, then the front one."""
        self.at_front = False

    def batch(self) -> bool:
        """Delete one batch; return whether the round goes on."""
        if not self.at_front:
            self.at_front = not (self.front and self.slow_batch())
            return True
        swept = self.swept(self.front)
        if swept.stopped or swept.reached is None:
            return False
        self.front = swept.reached
        return True

    def slow_batch(self) -> bool:
        """Move the slow hand; return whether it is to go on at once."""
        swept = self.swept(self.slow)
        if swept.reached is None or swept.reached >= self.front:
            self.slow = 0
            return False
        self.slow = swept.reached
        return swept.deleted > MOSTLY_OVER

    def swept(self, after: int) -> store.Swept:
        options = self.plan.options
        return store.purge(
            {status: options.retention_time(status) for status in ENDED},
            using=self.plan.using,
            after=after,
            keep=options.RETENTION_COUNT,
        )
