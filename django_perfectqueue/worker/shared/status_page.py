"""The status of a worker in memory that its processes share."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

from ..process.shared_memory import shared, with_fields
from ..process.wakeup import Wakeup
from .slot import ProcessorStatus

ALIVE_FOR = 30.0


@with_fields
class WorkerStatus(ctypes.Structure):
    """
    How a worker stands, as its supervisor and its janitor write it.

    ``turned_at`` is when its supervisor last saw to its processes, and ``reached_at`` when
    its janitor last had an answer from the database, or 0; by the monotonic clock. A
    ``leaving`` worker takes no more tasks. ``dropped`` is how many lines of its output were
    dropped, as nobody read them. ``wakeup`` is set once when the worker begins to leave.
    """

    processors: int
    leaving: bool
    dropped: int
    turned_at: float
    reached_at: float

    _wakeup: Wakeup
    _statuses: Sequence[ProcessorStatus]

    @classmethod
    def shared(cls, statuses: Sequence[ProcessorStatus] = ()) -> WorkerStatus:
        status = shared(cls)
        status._wakeup, status._statuses = Wakeup(), statuses
        return status

    @property
    def statuses(self) -> Sequence[ProcessorStatus]:
        """The status of each processor."""
        return self._statuses

    @property
    def wakeup(self) -> Wakeup:
        return self._wakeup

    def turn(self, processors: int) -> None:
        """Note that the supervisor is at work, and how many processors it has."""
        self.turned_at = time.monotonic()
        self.processors = processors

    def reach(self) -> None:
        """Note that the database has answered."""
        self.reached_at = time.monotonic()

    def leave(self) -> None:
        """Note that the worker takes no more tasks, and set ``wakeup`` once."""
        if not self.leaving:
            self.leaving = True
            self._wakeup.wake()

    def fileno(self) -> int:
        return self._wakeup.read_fd

    @property
    def turned(self) -> float:
        """How many seconds ago its supervisor last saw to its processes."""
        return time.monotonic() - self.turned_at

    @property
    def reached(self) -> float | None:
        """How many seconds ago the database last answered; None for never."""
        return time.monotonic() - self.reached_at if self.reached_at else None

    @property
    def is_live(self) -> bool:
        """Whether its supervisor does its work."""
        return self.turned < ALIVE_FOR

    @property
    def is_ready(self) -> bool:
        """Whether it takes tasks."""
        reached = self.reached is not None and self.reached < ALIVE_FOR
        return self.is_live and reached and self.processors > 0 and not self.leaving

    def facts(self) -> dict[str, object]:
        """Return it for programs; times are in seconds."""
        return {
            "live": self.is_live,
            "ready": self.is_ready,
            "leaving": self.leaving,
            "processors": self.processors,
            "dropped_lines": self.dropped,
            "supervisor_seen": round(self.turned, 3),
            "database_seen": None if self.reached is None else round(self.reached, 3),
        }
