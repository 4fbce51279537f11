"""The steps of a janitor that know themselves when they are due."""

from __future__ import annotations

import logging
import time

from django_perfectqueue import store
from django_perfectqueue.schedules.sync import declared_for, sync

from ..plan import Plan
from .registration import WorkerRegistration

logger = logging.getLogger("django_perfectqueue.janitor")

NOTE_INTERVAL = 10.0
SUM_INTERVAL = 60.0
COUNT_INTERVAL = 60.0
QUIET = 3.0
SYNC_INTERVAL = 30.0
RECOUNT_INTERVAL = 60.0
LEAST_REST = 1000


class UsageRollup:
    """
    Records waiting users, counts submitted tasks and sums up usage for all queues, in small
    steps.

    Several hosts may do so at once with the same result. While no user waits, the intervals
    are QUIET times as long, but not that of the count: tasks of then may wait later.
    """

    def __init__(self, plan: Plan) -> None:
        self.using = plan.using
        self.keep = plan.options.USAGE_TIME
        self.next_note = self.next_sum = self.next_count = 0.0
        self.newest = 0
        self.pause = QUIET

    def work(self) -> None:
        """Do the steps that are due; called every few seconds."""
        if self.keep == 0:
            return
        now = time.monotonic()
        if now >= self.next_note:
            self.pause = 1.0 if store.note_waiting(using=self.using) else QUIET
            self.next_note = now + NOTE_INTERVAL * self.pause
        if now >= self.next_count:
            self.newest = store.count_submitted(self.newest, using=self.using)
            self.next_count = now + COUNT_INTERVAL
        if now >= self.next_sum:
            store.roll_up(using=self.using, keep=self.keep)
            self.next_sum = now + SUM_INTERVAL * self.pause


class ScheduleSync:
    """Once when the worker begins; then each SYNC_INTERVAL, where there are declared schedules."""

    def __init__(self, using: str, registration: WorkerRegistration) -> None:
        self.using = using
        self.worker = registration.worker.id
        self.own = declared_for(using)
        self.is_first = True
        self.next_look = 0.0

    def work(self) -> None:
        """Look if it is time to; called every few seconds."""
        if time.monotonic() < self.next_look:
            return
        declared = sync(self.own, using=self.using, worker=self.worker, first=self.is_first)
        self.is_first = False
        self.next_look = time.monotonic() + SYNC_INTERVAL if declared else float("inf")


class Recounter:
    """
    Compares some counters at a time: all of them at the start of the worker and then once in
    RECOUNT_INTERVAL. It pauses for at least LEAST_REST times its running time.

    A counter that differs is corrected, logged, and noted in the worker's registration.
    """

    def __init__(self, using: str, registration: WorkerRegistration) -> None:
        self.using = using
        self.registration = registration
        self.position = store.Position()
        self.due_at = 0.0

    def work(self) -> None:
        """Compare some counters if due; called every few seconds."""
        if time.monotonic() < self.due_at:
            return
        began = time.monotonic()
        repaired = store.repair(using=self.using) if self.position == store.Position() else []
        self.position, corrected = store.recount(self.position, using=self.using)
        now = time.monotonic()
        pause = RECOUNT_INTERVAL if self.position == store.Position() else 0.0
        self.due_at = now + max(pause, LEAST_REST * (now - began))
        for drift in corrected:
            logger.error("A counter differed from the running tasks and was corrected. %s", drift)
        if corrected or repaired:
            self.registration.note_drift(now)
