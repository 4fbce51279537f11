"""How a supervisor sees that a helper goes on."""

from __future__ import annotations

import ctypes
import signal
import threading
import time

from .shared_memory import shared


class Pulse:
    """
    Shared memory on which a process notes now and then that it does not stand still.

    It does so in a thread of its own, so also while it waits for the database.
    """

    def __init__(self) -> None:
        self.at = shared(ctypes.c_double)
        self.beat()

    def beat(self) -> None:
        self.at.value = time.monotonic()

    def start(self, interval: float) -> None:
        """Note it every so many seconds from now on, as long as this process goes on."""
        threading.Thread(target=self.run, args=(interval,), name="pulse", daemon=True).start()

    def run(self, interval: float) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            self.beat()
            time.sleep(interval)
