"""The state of a database outage in one process."""

from __future__ import annotations

import ctypes
import threading
import time

from django_perfectqueue.store import Problem

from ..process.shared_memory import shared

AGAIN_AFTER = 300.0
SLIP_AFTER = 300.0


class Outage:
    """
    The outage of all links of one process, so that it is logged once and not by each link.

    It is created before the fork, after which each process has its own. All processes share
    ``reconnect_at`` (older connections must be replaced) and ``slipped_at`` (when a call
    that failed once was last logged). ``errors`` counts those of all links.
    """

    def __init__(self) -> None:
        self.process = "worker"
        self.reconnect_at = shared(ctypes.c_double)
        self.slipped_at = shared(ctypes.c_double)
        self.lock = threading.Lock()
        self.links: set[int] = set()
        self.since = 0.0
        self.what: Problem | None = None
        self.logged_at = 0.0
        self.errors = 0

    @property
    def is_on(self) -> bool:
        """Whether an outage was logged and has not ended."""
        return self.since > 0.0

    def reconnect(self) -> None:
        """Make all processes replace their connections, which lead to the wrong server or file."""
        self.reconnect_at.value = time.monotonic()

    def enter(self, link: int) -> None:
        """Count an error of a link, which is failing from now on."""
        with self.lock:
            self.links.add(link)
            self.errors += 1

    def is_news(self, what: Problem, since: float) -> bool:
        """Record an error; return whether to log it: it is new, differs, or has lasted."""
        now = time.monotonic()
        with self.lock:
            same = self.what is not None and self.what.family == what.family
            if self.is_on and same and now - self.logged_at < AGAIN_AFTER:
                return False
            self.since = self.since or since
            self.what, self.logged_at = what, now
            return True

    def leave(self, link: int) -> float | None:
        """Count a link as working; return the seconds of the outage if it ends with this."""
        with self.lock:
            self.links.discard(link)
            if self.links or not self.is_on:
                return None
            if self.what is Problem.READ_ONLY:
                # A link that only reads would not notice that it still uses a standby.
                self.reconnect()
            # Links that were idle find their dead connections later: log no slip for these.
            now = self.slipped_at.value = time.monotonic()
            lasted, self.since, self.what = now - self.since, 0.0, None
            return lasted

    def is_slip_news(self) -> bool:
        """Return whether to log a call that failed once: at most every five minutes."""
        last, now = self.slipped_at.value, time.monotonic()
        if self.is_on or (last and now - last < SLIP_AFTER):
            return False
        self.slipped_at.value = now
        return True
