"""A heartbeat in shared memory, by which a supervisor sees that a helper is alive."""

from __future__ import annotations

import ctypes
import signal
import threading
import time

from .shared_memory import shared


class ChildPulse:
    """
    The time of a process's last heartbeat, in shared memory.

    A thread writes it, so that it goes on while the process waits for the database.
    """

    def __init__(self) -> None:
        self.at = shared(ctypes.c_double)
        self.beat()

    def beat(self) -> None:
        self.at.value = time.monotonic()

    def start(self, interval: float) -> None:
        """Beat every ``interval`` seconds while this process lives."""
        threading.Thread(target=self.run, args=(interval,), name="pulse", daemon=True).start()

    def run(self, interval: float) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            self.beat()
            time.sleep(interval)
