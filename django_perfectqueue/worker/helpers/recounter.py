"""Has the counters of what runs compared with the tickets, now and then."""

from __future__ import annotations

import logging
import time

from django_perfectqueue import store

from ..database.link import Link
from .registration import WorkerRegistration

logger = logging.getLogger("django_perfectqueue.janitor")

INTERVAL = 60.0
LEAST_REST = 1000


class Recounter:
    """
    Compares some counters at a time; all of them when the worker starts and then once in
    INTERVAL, or less often, so that it rests LEAST_REST times as long as it takes.

    A counter that differs is corrected, logged, and told in the worker's row of the register.
    """

    def __init__(self, using: str, link: Link, registration: WorkerRegistration) -> None:
        self.using = using
        self.link = link
        self.registration = registration
        self.position = store.Position()
        self.due_at = 0.0

    def work(self) -> None:
        """Do what is due; called every few seconds."""
        if time.monotonic() < self.due_at:
            return
        began = time.monotonic()
        self.position, corrected = self.link.insist(self.recount)
        now = time.monotonic()
        pause = INTERVAL if self.position == store.Position() else 0.0
        self.due_at = now + max(pause, LEAST_REST * (now - began))
        for drift in corrected:
            logger.error("A counter did not agree with what runs, and was corrected. %s", drift)
        if corrected:
            self.registration.note_drift(now)

    def recount(self) -> tuple[store.Position, list[store.Drift]]:
        return store.recount(self.position, using=self.using)
