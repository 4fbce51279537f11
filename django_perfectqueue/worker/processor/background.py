"""A thread for what may take long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from django.db import connections

logger = logging.getLogger("django_perfectqueue.keeper")

Errand = Callable[[], object]


class Errands:
    """
    Does one thing after another in a thread of its own, which starts with the first.

    A database that hangs holds up only this thread.
    """

    def __init__(self) -> None:
        self.line: SimpleQueue[Errand | None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self.busy = False

    def send(self, errand: Errand) -> None:
        """Have it done; the caller has seen that the thread is not busy."""
        self.busy = True
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="errands", daemon=True)
            self.thread.start()
        self.line.put(errand)

    def stop(self, timeout: float) -> None:
        """End the thread; wait so long for what it is doing."""
        if self.thread is not None:
            self.line.put(None)
            self.thread.join(timeout)

    def run(self) -> None:
        while errand := self.line.get():
            try:
                errand()
            except BaseException:
                logger.exception("An errand failed.")
            finally:
                self.busy = False
        connections.close_all()
