"""Store the schedules that code declares, and retire those that no worker declares any more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django_perfectqueue.schedules.sync import declared_for, sync

if TYPE_CHECKING:
    from .registration import WorkerRegistration

INTERVAL = 30.0


class ScheduleSync:
    """Once when the worker begins; then each INTERVAL, where there are declared schedules."""

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
        self.next_look = time.monotonic() + INTERVAL if declared else float("inf")
