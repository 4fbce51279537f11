"""Compare the counters of running tasks with the tickets."""

from __future__ import annotations

import logging
import time

from django_perfectqueue import store

from .registration import WorkerRegistration

logger = logging.getLogger("django_perfectqueue.janitor")

INTERVAL = 60.0
LEAST_REST = 1000


class Recounter:
    """
    Compares some counters at a time: all of them at the start of the worker and then once in
    INTERVAL. It pauses for at least LEAST_REST times its running time.

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
        pause = INTERVAL if self.position == store.Position() else 0.0
        self.due_at = now + max(pause, LEAST_REST * (now - began))
        for drift in corrected:
            logger.error("A counter differed from the running tasks and was corrected. %s", drift)
        if corrected or repaired:
            self.registration.note_drift(now)
