"""A thread for what may take long."""

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
    Does one thing after another in a thread of its own, which starts with the first.

    A database that hangs holds up only this thread.
    """

    def __init__(self) -> None:
        self.calls: SimpleQueue[BackgroundCall | None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self.busy = False

    def send(self, call: BackgroundCall) -> None:
        """Have it done; the caller has seen that the thread is not busy."""
        self.busy = True
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="background", daemon=True)
            self.thread.start()
        self.calls.put(call)

    def stop(self, timeout: float) -> None:
        """End the thread; wait so long for what it is doing."""
        if self.thread is not None:
            self.calls.put(None)
            self.thread.join(timeout)

    def run(self) -> None:
        while call := self.calls.get():
            try:
                call()
            except BaseException:
                logger.exception("An errand failed.")
            finally:
                self.busy = False
        connections.close_all()
