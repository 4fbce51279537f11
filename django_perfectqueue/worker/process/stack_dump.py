"""Having the processes of a worker write the stacks of their threads, one after another."""

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
    Asks each process for its stacks, under a line that tells what it is.

    They write to the same standard error, in many small pieces; so the next one is asked
    a moment later.
    """

    def __init__(self) -> None:
        self.asked: deque[tuple[int, str]] = deque()
        self.next_at = 0.0

    def ask(self, processes: Iterable[tuple[int, str]]) -> None:
        """Take down whom to ask, by pid, and what each is; nobody twice."""
        known = {pid for pid, _title in self.asked}
        self.asked.extend(one for one in processes if one[0] not in known)

    def go_on(self, now: float) -> None:
        """Ask the next one, unless it is too early."""
        if not self.asked or now < self.next_at:
            return
        pid, title = self.asked.popleft()
        put_title(title)
        send(pid, DUMP)
        self.next_at = now + PAUSE

    def due(self) -> list[float]:
        """Return when to go on, if there is someone left."""
        return [self.next_at] if self.asked else []


def put_title(title: str) -> None:
    """Write the line below which a process writes its stacks."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"\n{title}\n")
        sys.stderr.flush()
