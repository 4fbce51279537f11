"""Wake the processors of a supervisor."""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from collections.abc import Sequence

from ..process.shared_memory import shared, with_fields
from ..process.wakeup import Wakeup
from .slot import Slot

TENDED_FOR = 10.0


@with_fields
class Tended(ctypes.Structure):
    """
    Until when a listener sends wake-ups, and hears of each task, by the monotonic clock; and
    a number that no two wake-ups share: that of the last one, for a free processor or not.
    """

    until: float
    hears_until: float
    last: int


class Wakeups:
    """
    Wakes one idle processor for a task, never all of them.

    A processor sets ``seeking`` before its last look for tasks. If it is woken during that
    look, it looks again or wakes another, so that no wake-up is lost.
    """

    def __init__(self, processors: Sequence[tuple[Slot, Wakeup]] = ()) -> None:
        self.processors = processors
        self.tended = shared(Tended)
        self.numbers = itertools.count()

    @property
    def last(self) -> int:
        """The number of the last wake-up, for a free processor or not."""
        return self.tended.last

    def wake_one(self) -> bool:
        """Wake the first free processor; return whether there was one."""
        # Before the search: a processor becomes free first, and compares the number then.
        self.tended.last = (os.getpid() << 32) + next(self.numbers)
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

    def tend(self, *, hears: bool = False) -> None:
        """
        Promise wake-ups for some seconds, during which processors need not poll; where it
        ``hears`` of each task, one for each at once.
        """
        self.tended.until = time.monotonic() + TENDED_FOR
        self.tended.hears_until = self.tended.until if hears else 0.0

    def is_tended(self) -> bool:
        """Return whether a listener sends wake-ups."""
        return time.monotonic() < self.tended.until

    def came_since(self, last: int) -> bool:
        """Return whether a wake-up may have come since the one with this number."""
        return self.tended.last != last or time.monotonic() >= self.tended.hears_until
