"""A thread for calls that may block."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from django.db import connections

logger = logging.getLogger("django_perfectqueue.monitor")

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
