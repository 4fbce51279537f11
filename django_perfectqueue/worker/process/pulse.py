"""How a supervisor sees that a helper goes on."""

from __future__ import annotations

import mmap
import signal
import threading
import time

MICROSECONDS = 1_000_000


class Pulse:
    """
    A page of memory on which a process notes now and then that it is not standing still.

    It does so in a thread of its own, so also while it waits for the database.
    """

    def __init__(self) -> None:
        self.page = mmap.mmap(-1, mmap.PAGESIZE)
        self.moments = memoryview(self.page).cast("q")
        self.beat()

    def beat(self) -> None:
        self.moments[0] = int(time.monotonic() * MICROSECONDS)

    @property
    def at(self) -> float:
        """When it was last noted, by the monotonic clock, which all processes share."""
        return self.moments[0] / MICROSECONDS

    def start(self, interval: float) -> None:
        """Note it every so many seconds from now on, as long as this process goes on."""
        threading.Thread(target=self.run, args=(interval,), name="pulse", daemon=True).start()

    def run(self, interval: float) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            self.beat()
            time.sleep(interval)
