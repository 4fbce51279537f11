"""Take tasks in advance: how many at once, and the next batch while one runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from django.db import connections

from django_perfectqueue import store

from ..database.link import Link, discard
from .background import BackgroundThread

SPAN = 0.25
LONG = 0.05
MOST = 1_000
MOST_CHARACTERS = 4_000_000
"""Of the data of all tasks that are taken at once."""
GROWTH = 4
TOO_FAR = 1.5
MEMORY = 0.9
MOST_TYPES = 1_000
JOIN_TIMEOUT = 10.0


class Prefetch:
    """
    Computes how many tasks run in about a quarter of a second, by a moving average.

    A larger batch would hold tasks that other processors could run. It begins with one and
    at most quadruples. ``places`` is how many tasks run at once. ``fixed`` is TASK_PREFETCH.
    """

    def __init__(self, fixed: int | None = None, *, places: int = 1) -> None:
        self.fixed = fixed
        self.places = places
        self.mean = 0.0
        self.pace = 0.0
        self.tasks = 0
        self.means: dict[str, float] = {}
        self.characters = 0.0
        self.last = 0

    def took(self, leases: Sequence[store.Lease]) -> None:
        """Note how large the data of tasks is that were taken together."""
        if leases:
            self.characters = sum([len(lease.payload) for lease in leases]) / len(leases)

    def paced(self, seconds: float) -> None:
        """
        Note how long the tasks since the last call have kept a serial processor, with all
        around them: where processors share a core, longer than their handlers.
        """
        if self.tasks:
            pace = seconds / self.tasks
            self.pace = (self.pace + pace) / 2 if self.pace else pace
            self.tasks = 0

    def ran(self, type_: str, seconds: float) -> None:
        self.tasks += 1
        before = self.means.get(type_, seconds)
        if len(self.means) >= MOST_TYPES:
            self.means.clear()
        self.means[type_] = before * MEMORY + seconds * (1 - MEMORY)
        self.mean = self.mean * MEMORY + seconds * (1 - MEMORY) if self.mean else seconds

    def limit(self) -> int:
        """Return how many tasks to hold, running ones included, and let it grow."""
        self.last = self.next()
        return self.last

    def next(self) -> int:
        """Return the value of limit() without the growth."""
        if self.fixed is not None:
            return self.fixed + self.places
        span = SPAN * self.places
        mean = max(self.mean, self.pace)
        fitting = int(span / mean) if mean > span / MOST else MOST
        if not self.mean:
            fitting = self.places if self.places > 1 else MOST
        if self.characters * MOST > MOST_CHARACTERS:
            fitting = min(fitting, int(MOST_CHARACTERS / self.characters))
        most = max(self.places, min(MOST, fitting))
        return max(1, min(most, self.last * GROWTH or 1))

    def over_at(self, began: float) -> float:
        """
        Return when a batch that began at ``began`` has run far longer than planned, or inf.

        Then tasks are suddenly longer than before. The rest of the batch is released, so that
        free processors take it, in the order of that moment.
        """
        return began + SPAN * TOO_FAR if self.fixed is None else float("inf")

    def may_be_long(self, type_: str) -> bool:
        """Return whether a task of this type may delay the completions before it."""
        return self.means.get(type_, LONG) >= LONG


class Ahead:
    """
    Acquires the next batch in another thread, over a connection of its own.

    The leases go to the end of the batch in hand, so they are renewed and released with
    it. ``count`` is how many these are: 0 until they are there, -1 while none are to come.
    ``limit`` is how many were asked for, and ``before`` the time before the call.
    """

    def __init__(self, link: Link, batch: deque[store.Lease]) -> None:
        self.link = link
        self.batch = batch
        self.thread = BackgroundThread()
        self.coming: Future[list[store.Lease]] | None = None
        self.count = -1
        self.limit = 0
        self.before = 0.0

    def begin(self, limit: int, claim: Callable[[int, float], list[store.Lease]]) -> None:
        """Have the thread claim up to so many tasks; ``claim`` is given the time as well."""
        self.limit, self.count, self.before = limit, 0, time.monotonic()
        coming: Future[list[store.Lease]] = Future()
        self.coming = coming
        self.thread.send(lambda: self.acquire(coming, claim))

    def acquire(
        self,
        coming: Future[list[store.Lease]],
        claim: Callable[[int, float], list[store.Lease]],
    ) -> None:
        try:
            taken = self.link.once(lambda: claim(self.limit, self.before))
        except BaseException as error:
            self.link.close_handle()
            discard(connections[self.link.using])
            coming.set_exception(error)
            return
        # Set first, so that none of these begins before the batch before them has ended.
        self.count = len(taken)
        self.batch.extend(taken)
        coming.set_result(taken)

    def is_known(self) -> bool:
        """Return whether the thread has its answer, or was asked for nothing."""
        return self.coming is None or self.coming.done()

    def wait(self) -> None:
        """Wait until it is known what the thread has acquired."""
        if self.coming is not None:
            self.coming.exception()

    def take(self) -> list[store.Lease]:
        """Wait for what was acquired, and return it; raise the error of the call."""
        self.wait()
        # After the wait, since the thread sets it.
        coming, self.coming, self.count = self.coming, None, -1
        return [] if coming is None else coming.result()

    def rest(self) -> None:
        """End the thread and its connection until it is needed again."""
        if self.thread.thread is not None:
            self.stop()
            self.thread = BackgroundThread()

    def stop(self) -> None:
        self.thread.stop(JOIN_TIMEOUT)
        self.link.close_handle()
