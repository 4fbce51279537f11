"""What a process knows of its trouble with the database."""

from __future__ import annotations

import ctypes
import threading
import time

from django_perfectqueue.store import Ailment

from ..process.shared_memory import shared

AGAIN_AFTER = 300.0
SLIP_AFTER = 300.0


class Outage:
    """
    The trouble of all links of one process, so that it is logged once and not by each link.

    Made before the worker's processes are forked: from then on each has its own. All share
    ``reconnect_at``, before which no connection may have been made, and ``slipped_at``, when
    a call that failed once was last logged.
    """

    def __init__(self) -> None:
        self.process = "worker"
        self.reconnect_at = shared(ctypes.c_double)
        self.slipped_at = shared(ctypes.c_double)
        self.lock = threading.Lock()
        self.links: set[int] = set()
        self.since = 0.0
        self.what: Ailment | None = None
        self.logged_at = 0.0

    @property
    def is_on(self) -> bool:
        """Whether a trouble was logged and has yet to end."""
        return self.since > 0.0

    def reconnect(self) -> None:
        """Have all processes connect anew: their connections lead to where none should be."""
        self.reconnect_at.value = time.monotonic()

    def enter(self, link: int) -> None:
        """Count a link as one in trouble."""
        with self.lock:
            self.links.add(link)

    def is_news(self, what: Ailment, since: float) -> bool:
        """Note a trouble; return whether to log it: it is new, another, or lasts for long."""
        now = time.monotonic()
        with self.lock:
            same = self.what is not None and self.what.family == what.family
            if self.is_on and same and now - self.logged_at < AGAIN_AFTER:
                return False
            self.since = self.since or since
            self.what, self.logged_at = what, now
            return True

    def leave(self, link: int) -> float | None:
        """Count a link as open again; return the seconds of an outage that ends with that."""
        with self.lock:
            self.links.discard(link)
            if self.links or not self.is_on:
                return None
            if self.what is Ailment.READ_ONLY:
                # Who only reads does not notice that it still reads from a standby.
                self.reconnect()
            # Who was idle all the time has yet to find its connection dead.
            now = self.slipped_at.value = time.monotonic()
            lasted, self.since, self.what = now - self.since, 0.0, None
            return lasted

    def is_slip_news(self) -> bool:
        """Return whether to log a call that failed once; of those there is a line in a while."""
        last, now = self.slipped_at.value, time.monotonic()
        if self.is_on or (last and now - last < SLIP_AFTER):
            return False
        self.slipped_at.value = now
        return True
