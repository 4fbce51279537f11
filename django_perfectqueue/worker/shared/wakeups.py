"""Wake the processors of a supervisor."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

from ..process.shared_memory import shared
from ..process.wakeup import Wakeup
from .slot import ProcessorStatus

LISTENED_FOR = 10.0


class Wakeups:
    """
    Wakes one idle processor for a task, never all of them.

    A processor sets ``seeking`` before its last look for tasks. If it is woken during that
    look, it looks again or wakes another, so that no wake-up is lost.
    """

    def __init__(self, processors: Sequence[tuple[ProcessorStatus, Wakeup]] = ()) -> None:
        self.processors = processors
        self.listened_until = shared(ctypes.c_double)

    def wake_one(self) -> bool:
        """Wake the first free processor; return whether there was one."""
        for status, wakeup in self.processors:
            if status.is_free:
                status.rung = True
                wakeup.wake()
                return True
        return False

    def call(self, holder: int) -> None:
        """Make the processor with this holder check the leases that it holds."""
        for status, _wakeup in self.processors:
            if status.holder == holder:
                status.called = True

    def has_free(self) -> bool:
        return any(status.is_free for status, _wakeup in self.processors)

    def is_at_work(self) -> bool:
        """Return whether any task runs."""
        return any(status.tasks for status, _wakeup in self.processors)

    def note_listener(self) -> None:
        """Promise wake-ups for some seconds, during which processors need not poll."""
        self.listened_until.value = time.monotonic() + LISTENED_FOR

    def has_listener(self) -> bool:
        """Return whether a listener sends wake-ups."""
        return time.monotonic() < self.listened_until.value
