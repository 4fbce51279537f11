"""Wake the processors of a supervisor."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

from ..process.shared_memory import shared, with_fields
from ..process.wakeup import Wakeup
from .slot import Slot

TENDED_FOR = 10.0


@with_fields
class Tended(ctypes.Structure):
    """
    Until when a listener sends wake-ups, by the monotonic clock.
    """

    until: float


class Wakeups:
    """
    Wakes one idle processor for a task, never all of them.

    A processor sets ``seeking`` before its last look for tasks. If it is woken during that
    look, it looks again or wakes another, so that no wake-up is lost.
    """

    def __init__(self, processors: Sequence[tuple[Slot, Wakeup]] = ()) -> None:
        self.processors = processors
        self.tended = shared(Tended)

    def wake_one(self) -> bool:
        """Wake the first free processor; return whether there was one."""
        for slot, wakeup in self.processors:
            if slot.is_free:
                slot.rung = True
                wakeup.wake()
                return True
        return False

    def call(self, holder: int) -> None:
        """Make the processor with this holder check the leases that it holds."""
        for slot, _wakeup in self.processors:
            if slot.holder == holder:
                slot.called = True

    def has_free(self) -> bool:
        return any(slot.is_free for slot, _wakeup in self.processors)

    def is_at_work(self) -> bool:
        """Return whether any task runs."""
        return any(slot.tasks for slot, _wakeup in self.processors)

    def tend(self) -> None:
        """Promise wake-ups for some seconds, during which processors need not poll."""
        self.tended.until = time.monotonic() + TENDED_FOR

    def is_tended(self) -> bool:
        """Return whether a listener sends wake-ups."""
        return time.monotonic() < self.tended.until
