"""Measure whether a process uses the processor."""

from __future__ import annotations

import contextlib
from pathlib import Path

PROC = Path("/proc")
LEAST_SHARE = 0.02
LEAST_SPAN = 0.1
NANOSECONDS = 1_000_000_000


class CpuUsage:
    """
    Distinguishes a process that computes from one that is blocked, from outside.

    The busiest thread counts. A thread that waits for the interpreter lock wakes up some
    200 times a second and uses at most a thirtieth of ``LEAST_SHARE``. Without /proc every
    process counts as blocked.
    """

    def __init__(self, pid: int, now: float) -> None:
        self.pid = pid
        self.looked_at = now
        self.used = used(pid)
        self.verdict = False

    def is_busy(self, now: float) -> bool:
        """Return whether it has computed since the last look, at most every 0.1 s."""
        span = now - self.looked_at
        if span >= LEAST_SPAN:
            before, self.used, self.looked_at = self.used, used(self.pid), now
            most = max((self.used[one] - before.get(one, 0.0) for one in self.used), default=0.0)
            self.verdict = most >= span * LEAST_SHARE
        return self.verdict


def used(pid: int) -> dict[int, float]:
    """Return the processor time in seconds of each thread of a process."""
    found = {}
    for folder in (PROC / str(pid) / "task").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            found[int(folder.name)] = int((folder / "schedstat").read_text().split()[0])
    return {thread: time / NANOSECONDS for thread, time in found.items()}
