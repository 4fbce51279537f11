"""Threads for calls that may block."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from django.db import connections

from django_perfectqueue import store

from ..database.link import Link, discard

logger = logging.getLogger("django_perfectqueue.monitor")

JOIN_TIMEOUT = 10.0

BackgroundCall = Callable[[], object]


class BackgroundThread:
    """
    Runs calls one after another in a thread, which starts with the first call.

    A database that hangs blocks only this thread.
    """

    def __init__(self) -> None:
        self.calls: SimpleQueue[BackgroundCall | None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self.busy = False

    def send(self, call: BackgroundCall) -> None:
        """Queue a call; the caller has checked that the thread is not busy."""
        self.busy = True
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="background", daemon=True)
            self.thread.start()
        self.calls.put(call)

    def stop(self, timeout: float) -> None:
        """End the thread; wait up to ``timeout`` seconds for its call."""
        if self.thread is not None:
            self.calls.put(None)
            self.thread.join(timeout)

    def run(self) -> None:
        while call := self.calls.get():
            try:
                call()
            except BaseException:
                logger.exception("A background call failed.")
            finally:
                self.busy = False
        connections.close_all()


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
