"""Break off database calls that get no answer."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Sequence

from .link import Link

logger = logging.getLogger("django_perfectqueue.watchdog")

GRACE = 2.0
LEAST = 5.0


class Watchdog:
    """
    Checks from another thread how long each link has waited for an answer.

    After ``timeout`` seconds it cancels the wait for a lock; two seconds later it shuts the
    socket down. Otherwise a link would wait forever for a network that drops packets or for
    a server that hangs. A link with less patience, as at a stop, gets less time.
    """

    def __init__(self, links: Sequence[Link], timeout: float | None) -> None:
        self.links = list(links)
        self.timeout = math.inf if timeout is None else timeout
        self.ended = threading.Event()

    def start(self) -> None:
        """Check every few seconds in a new thread."""
        if math.isfinite(self.timeout):
            threading.Thread(target=self.run, name="watchdog", daemon=True).start()

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self.ended.wait(min(LEAST, self.timeout) / 2):
            try:
                self.look(time.monotonic())
            except Exception:
                logger.exception("The connection watchdog raised an exception and continues.")

    def stop(self) -> None:
        self.ended.set()

    def look(self, now: float) -> None:
        for link in self.links:
            since, socket_handle = link.calling_since, link.socket_handle
            if not since or socket_handle is None:
                continue
            waited, limit = now - since, min(self.timeout, max(LEAST, link.patience()))
            if waited >= limit:
                link.silent = True
                if not socket_handle.cancel_sent:
                    socket_handle.cancel_query()
                elif waited >= limit + min(GRACE, self.timeout):
                    socket_handle.shutdown()


def timeout_for(timeout: float | None, *, alive_time: float) -> float | None:
    """Return the timeout in seconds, below a quarter of the lease time."""
    return None if timeout is None else min(timeout, max(LEAST, alive_time / 4))
