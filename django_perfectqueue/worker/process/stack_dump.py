"""Request stack dumps from the processes of a worker, one after another."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterable

from django_perfectqueue.lib.processes import send

from .signals import DUMP

PAUSE = 0.1


class StackDumps:
    """
    Requests a stack dump of each process, below a line that names the process.

    A dump consists of many small writes to a shared standard error. So the next request
    follows after a pause.
    """

    def __init__(self) -> None:
        self.queued: deque[tuple[int, str]] = deque()
        self.next_at = 0.0

    def ask(self, processes: Iterable[tuple[int, str]]) -> None:
        """Queue processes, given as pid and title; each at most once."""
        known = {pid for pid, _title in self.queued}
        self.queued.extend(one for one in processes if one[0] not in known)

    def go_on(self, now: float) -> None:
        """Request the next dump, unless it is too early."""
        if not self.queued or now < self.next_at:
            return
        pid, title = self.queued.popleft()
        put_title(title)
        send(pid, DUMP)
        self.next_at = now + PAUSE

    def due(self) -> list[float]:
        """Return when the next request is due, if any is queued."""
        return [self.next_at] if self.queued else []


def put_title(title: str) -> None:
    """Write the line above a stack dump."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"\n{title}\n")
        sys.stderr.flush()
