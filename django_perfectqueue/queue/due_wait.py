"""Waiting for a task that is due."""

from __future__ import annotations

import time

from django_perfectqueue import store
from django_perfectqueue.exceptions import WaitInTransactionError

SOONEST, LATEST = 0.05, 0.5


class DueWait:
    """
    When to look for a task again: ever less often, down to twice a second, and when the clock
    has something due. ``timeout`` is in seconds, None for ever.
    """

    def __init__(self, queue: str, *, using: str, timeout: float | None) -> None:
        if store.in_callers_transaction(using):
            raise WaitInTransactionError(
                f"A transaction is open, in which tasks of queue '{queue}' may never be seen."
                " Poll with a timeout outside of the atomic block."
            )
        self.queue = queue
        self.using = using
        self.ends_at = None if timeout is None else time.monotonic() + timeout
        self.next = SOONEST

    def pause(self) -> float | None:
        """Return the seconds until the next look; None when the time is up."""
        left = None if self.ends_at is None else self.ends_at - time.monotonic()
        if left is not None and left <= 0:
            return None
        outlook = store.with_retries(self.look, using=self.using)
        pause, self.next = self.next, min(LATEST, self.next * 2)
        if outlook.wait is not None:
            pause = min(pause, max(SOONEST, outlook.wait))
        return pause if left is None else min(pause, left)

    def look(self) -> store.Outlook:
        """Look once; where no worker is, a program that waits fires the schedules."""
        outlook = store.look([self.queue], using=self.using)
        if outlook.ticks_due:
            store.fire_schedules(using=self.using)
            outlook = store.look([self.queue], using=self.using)
        return outlook
