"""The wake-ups of all processors of a supervisor."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

from ..process.shared_memory import shared
from ..process.wakeup import Wakeup
from .slot import Slot

TENDED_FOR = 10.0


class Wakeups:
    """
    Wakes one processor that has nothing to do, and never all of them for one task.

    A processor shows that it seeks before it looks for tasks for what may be the last time;
    so one that is rung meanwhile looks again, or passes the ring on.
    """

    def __init__(self, processors: Sequence[tuple[Slot, Wakeup]] = ()) -> None:
        self.processors = processors
        self.tended_until = shared(ctypes.c_double)

    def wake_one(self) -> bool:
        """Ring for the first that is free; return whether there was one."""
        for slot, wakeup in self.processors:
            if slot.is_free:
                slot.rung = True
                wakeup.wake()
                return True
        return False

    def call(self, holder: int) -> None:
        """Have the processor with this holder look what became of what it holds."""
        for slot, _wakeup in self.processors:
            if slot.holder == holder:
                slot.called = True

    def has_free(self) -> bool:
        return any(slot.is_free for slot, _wakeup in self.processors)

    def is_at_work(self) -> bool:
        """Return whether any task runs."""
        return any(slot.tasks for slot, _wakeup in self.processors)

    def tend(self) -> None:
        """Let the processors count on being rung, for some seconds."""
        self.tended_until.value = time.monotonic() + TENDED_FOR

    def is_tended(self) -> bool:
        """Return whether someone would ring."""
        return time.monotonic() < self.tended_until.value
