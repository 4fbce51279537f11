"""Waiting for a task that is due."""

from __future__ import annotations

import time
from collections.abc import Iterator

from django_perfectqueue import store
from django_perfectqueue.exceptions import WaitInTransactionError

SOONEST, LATEST = 0.05, 0.5


def pauses(queue: str, *, using: str, timeout: float | None) -> Iterator[float]:
    """
    Yield the seconds to wait before each look for a task, until the time is up.

    Ever longer, up to half a second, and until the clock has something due. ``timeout`` is in
    seconds, None for ever. Raise WaitInTransactionError in an open transaction.
    """
    if store.in_callers_transaction(using):
        raise WaitInTransactionError(
            f"A transaction is open, in which tasks of queue '{queue}' may never be seen."
            " Poll with a timeout outside of the atomic block."
        )
    ends_at = float("inf") if timeout is None else time.monotonic() + timeout
    longest = SOONEST
    while (left := ends_at - time.monotonic()) > 0.0:
        outlook = store.with_retries(lambda: look(queue, using), using=using)
        due_in = LATEST if outlook.wait is None else max(SOONEST, outlook.wait)
        yield min(longest, due_in, left)
        longest = min(LATEST, longest * 2)


def look(queue: str, using: str) -> store.Outlook:
    """Look once; where no worker is, a program that waits fires the schedules."""
    outlook = store.look([queue], using=using)
    if outlook.ticks_due:
        store.fire_schedules(using=using)
        outlook = store.look([queue], using=using)
    return outlook
