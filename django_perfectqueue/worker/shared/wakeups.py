"""The bells of all processors of a supervisor."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence

from ..process.wakeup import Bell
from .slot import Slate

MICROSECONDS = 1_000_000
TENDED_FOR = 10.0


class Belfry:
    """
    Wakes one processor that has nothing to do, and never all of them for one task.

    A processor says on its slate that it seeks before it looks for tasks for what may be
    the last time; so one that is rung meanwhile looks again, or passes the ring on.
    """

    def __init__(self, bells: Sequence[tuple[Slate, Bell]] = ()) -> None:
        self.bells = bells
        self.page = mmap.mmap(-1, mmap.PAGESIZE)
        self.moments = memoryview(self.page).cast("q")

    def wake_one(self) -> bool:
        """Ring for the first that is free; tell whether there was one."""
        for slate, bell in self.bells:
            if slate.is_free:
                slate.mark_rung()
                bell.ring()
                return True
        return False

    def call(self, holder: int) -> None:
        """Have the processor that holds something as this holder look what became of it."""
        for slate, _bell in self.bells:
            if slate.holder == holder:
                slate.call()

    def has_free(self) -> bool:
        return any(slate.is_free for slate, _bell in self.bells)

    def is_at_work(self) -> bool:
        """Tell whether any task runs."""
        return any(slate.begun for slate, _bell in self.bells)

    def tend(self) -> None:
        """Let the processors count on being rung, for some seconds."""
        self.moments[0] = int(time.monotonic() * MICROSECONDS)

    def is_tended(self) -> bool:
        """Tell whether there is someone who would ring."""
        tended_at = self.moments[0]
        return bool(tended_at) and time.monotonic() - tended_at / MICROSECONDS < TENDED_FOR
