"""Take tasks from a queue without a worker, and wait for one that is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial

from asgiref.sync import sync_to_async

from django_perfectqueue import store
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import WaitInTransactionError
from django_perfectqueue.lib.async_twins import twin
from django_perfectqueue.payload.inputs import Duration, checked_duration, checked_timeout
from django_perfectqueue.store.values import ClaimRequest, Now, new_holder

from .acquired import AcquiredTask

UNTENDED = 300.0


class Taking:
    """The part of a queue that takes tasks."""

    name: str

    @property
    def using(self) -> str:
        raise NotImplementedError

    def acquire(
        self, limit: int = 1, *, alive_time: float | None = None, now: Now = None
    ) -> list[AcquiredTask]:
        """
        Take up to so many due tasks, in fair order, each for ``alive_time`` seconds.

        The default is five minutes, or ALIVE_TIME where that is longer: nothing renews a
        lease here but heartbeat(). Raise InvalidTaskError when that is no length of time.
        """
        usual = max(UNTENDED, options().ALIVE_TIME)
        alive_time = checked_duration("alive_time", alive_time or None) or usual
        request = ClaimRequest(
            queues=[self.name],
            limit=limit,
            alive_time=alive_time,
            holder=new_holder(),
            using=self.using,
            now=now,
        )
        leases = store.acquire(request)
        return [AcquiredTask(lease, alive_time=alive_time, _writes=True) for lease in leases]

    def poll(
        self, timeout: Duration | None = 0, *, alive_time: float | None = None, now: Now = None
    ) -> AcquiredTask | None:
        """
        Take the next due task, or None when nothing is due.

        With a ``timeout``, a timedelta, seconds or a span, wait so long for one; None is for
        ever. Raise WaitInTransactionError when it has to wait in an open transaction,
        ValueError for an invalid timeout.
        """
        seconds = checked_timeout(timeout)
        take = partial(self.acquire, 1, alive_time=alive_time, now=now)
        waits = pauses(self.name, using=self.using, timeout=seconds)
        taken = take()
        while not taken and seconds != 0 and (pause := next(waits, None)) is not None:
            time.sleep(pause)
            taken = take()
        return taken[0] if taken else None

    async def apoll(
        self, timeout: Duration | None = 0, *, alive_time: float | None = None, now: Now = None
    ) -> AcquiredTask | None:
        """Do what poll() does, without holding up the event loop."""
        seconds = checked_timeout(timeout)
        take = partial(self.aacquire, 1, alive_time=alive_time, now=now)
        waits = pauses(self.name, using=self.using, timeout=seconds)
        next_pause = sync_to_async(partial(next, waits, None))
        taken = await take()
        while not taken and seconds != 0 and (pause := await next_pause()) is not None:
            await asyncio.sleep(pause)
            taken = await take()
        return taken[0] if taken else None

    def __iter__(self) -> Iterator[AcquiredTask]:
        while task := self.poll():
            yield task

    aacquire = twin(acquire)

    async def __aiter__(self) -> AsyncIterator[AcquiredTask]:
        while task := await self.apoll():
            yield task


# Waiting for a task that is due.


SOONEST, LATEST = 0.05, 0.5


def pauses(queue: str, *, using: str, timeout: float | None) -> Iterator[float]:
    """
    Yield the seconds to wait before each look for a task, until the time is up.

    Ever longer, up to half a second, and until the clock has something due. ``timeout`` is in
    seconds, None for ever. Raise WaitInTransactionError in an open transaction.
    """
    if store.database.is_callers(using):
        raise WaitInTransactionError(
            f"A transaction is open, in which tasks of queue '{queue}' may never be seen."
            " Poll with a timeout outside of the atomic block."
        )
    ends_at = float("inf") if timeout is None else time.monotonic() + timeout
    longest = SOONEST
    while (left := ends_at - time.monotonic()) > 0.0:
        outlook = store.database.with_retries(lambda: look(queue, using), using=using)
        due_in = LATEST if outlook.wait is None else max(SOONEST, outlook.wait)
        yield min(longest, due_in, left)
        longest = min(LATEST, longest * 2)


def look(queue: str, using: str) -> store.Outlook:
    """Look once; where no worker is, a program that waits fires the schedules."""
    outlook = store.look([queue], using=using)
    if outlook.ticks_due:
        store.schedules.fire_schedules(using=using)
        outlook = store.look([queue], using=using)
    return outlook
