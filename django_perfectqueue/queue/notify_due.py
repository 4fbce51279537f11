"""Waiting for a task that is due."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error

from django_perfectqueue import store
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import WaitInTransactionError

logger = logging.getLogger("django_perfectqueue.bell")

SOONEST = 0.05
LATEST_UNHEARD = 0.5


class DueWait:
    """
    When to look for a task again: once the bell of the queue was rung, when the clock
    has something due, and at the latest after POLL_INTERVAL.

    Without a bell, as in a coroutine, it looks ever less often, down to twice a second.
    Used as a context manager; ``timeout`` is in seconds, None for ever.
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
        self.unsure = SOONEST
        self.bell: Any = None

    def __enter__(self) -> DueWait:
        """Listen from now on: a look that comes after this misses nothing."""
        self.bell = store.doorbell(self.queue, using=self.using)
        try:
            if self.bell is not None:
                self.bell.open()
        except (Error, OSError) as error:
            logger.debug("The bell is not heard. queue=%s error=%s", self.queue, error)
            self.close()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self.bell is not None:
            self.bell.close()
            self.bell = None

    def wait(self) -> bool:
        """Wait until it is time to look again; return False at once when the time is up."""
        seconds = self.pause()
        if seconds is None:
            return False
        if self.bell is None:
            time.sleep(seconds)
            return True
        self.bell.wait(seconds)
        if not self.bell.is_open:
            self.close()
            self.__enter__()
        return True

    async def wait_async(self) -> bool:
        """Do what wait() does, without holding up the event loop, a thread or a connection."""
        seconds = await sync_to_async(self.pause)()
        if seconds is not None:
            await asyncio.sleep(seconds)
        return seconds is not None

    def pause(self) -> float | None:
        """Return the seconds until the next look; None when the time is up."""
        left = None if self.ends_at is None else self.ends_at - time.monotonic()
        if left is not None and left <= 0:
            return None
        outlook = store.patiently(self.look, using=self.using)
        latest = options().POLL_INTERVAL if self.bell else LATEST_UNHEARD
        if self.bell and not outlook.due:
            pause, self.unsure = latest, SOONEST
        else:
            # Nothing notifies of what comes, or others hold what is due for a moment.
            pause, self.unsure = self.unsure, min(latest, self.unsure * 2)
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
