"""What a processor is doing, where its supervisor can read it even after its death."""

from __future__ import annotations

import ctypes
import mmap
import threading

from django_perfectqueue.application.time_limits import TimeLimits

from ..process.shared_memory import with_fields

COUNTED = (
    "finished",
    "retried",
    "snoozed",
    "failed",
    "discarded",
    "cancelled",
    "released",
    "preempted",
    "left",
    "crashed",
    "killed",
)
NEVER = float("inf")
NO_LIMITS = TimeLimits()

RENEWALS = 3
"""How often leases are renewed while one of them would last."""


class ProcessorCounts(ctypes.Structure):
    """How many attempts of a processor's place ended in each way."""

    _fields_ = [(word, ctypes.c_int64) for word in COUNTED]


@with_fields
class TaskStatus(ctypes.Structure):
    """
    A task whose handler runs; ``task_id`` is 0 where there is none. ``account`` is the lane
    that is charged for it, and ``charge`` what it was expected to take, 0.0 where nobody knew.

    Times are in seconds of the monotonic clock, which all processes of a host share.
    ``stopped_id`` and ``returned_id`` name the task that they are about, so that they never
    hold for the next one in the same place.
    """

    task_id: int
    account: int
    charge: float
    since: float
    limit_at: float
    kill_wait: float
    stopped_id: int
    stopped_at: float
    returned_id: int

    @property
    def kill_at(self) -> float:
        """When its processor is killed: by its time limit, or after a stop request."""
        if self.returned_id == self.task_id:
            return NEVER
        if self.stopped_id == self.task_id:
            return min(self.limit_at, self.stopped_at + self.kill_wait)
        return self.limit_at


@with_fields
class ProcessorStatus(ctypes.Structure):
    """
    Shared-memory status of one processor, read by the supervisor, helpers and processors.

    The processor writes it, which costs no system call. Others set ``rung`` and ``called``.

    - ``signed_off``: the processor ended by itself and left nothing behind.
    - ``serves``: it has looked for tasks for the first time.
    - ``seeking``: it looks for tasks, or would wake for one. ``rung``: it was woken since.
    - ``called``: something happened to a task that it holds.
    - ``renewed_at``: when its leases were last renewed, or 0.
    """

    pid: int
    holder: int
    renewed_at: float
    signed_off: bool
    serves: bool
    seeking: bool
    rung: bool
    called: bool
    counts: ProcessorCounts

    _task_statuses: ctypes.Array[TaskStatus]
    _lock: threading.Lock

    @classmethod
    def shared(cls, concurrency: int = 1) -> ProcessorStatus:
        """Return the status of a processor that runs up to ``concurrency`` tasks at once."""
        size = ctypes.sizeof(cls)
        page = mmap.mmap(-1, size + concurrency * ctypes.sizeof(TaskStatus))
        status = cls.from_buffer(page)
        status._task_statuses = (TaskStatus * concurrency).from_buffer(page, size)
        status._lock = threading.Lock()
        return status

    @property
    def tasks(self) -> list[TaskStatus]:
        """The tasks whose handlers run; copies, since a status may be written meanwhile."""
        copies = map(TaskStatus.from_buffer_copy, self._task_statuses)
        return [task for task in copies if task.task_id]

    def overdue(self, now: float) -> list[TaskStatus]:
        """Return the tasks that are to be ended by force by now."""
        return [task for task in self.tasks if task.kill_at <= now]

    @property
    def is_free(self) -> bool:
        """Whether a wake-up would make it look for tasks, and none was sent."""
        return self.seeking and not self.rung

    def seek(self) -> None:
        """Begin to look for tasks; a wake-up from now on is kept in ``rung``."""
        self.rung = False
        self.seeking = True

    def sign_on(self, holder: int = 0) -> None:
        """Reset it for another processor; the counts stay."""
        ctypes.memset(ctypes.addressof(self), 0, ProcessorStatus.counts.offset)
        self.holder = holder
        self.clear()

    def begin(
        self,
        task_id: int,
        *,
        since: float,
        limits: TimeLimits = NO_LIMITS,
        index: int = 0,
        whose: tuple[int, float] = (0, 0.0),
    ) -> None:
        """Record that a handler begins; ``whose`` are its account and charge."""
        task, (time_limit, kill_wait) = self._task_statuses[index], limits
        task.stopped_id = task.returned_id = 0
        task.since, task.kill_wait = since, kill_wait
        task.account, task.charge = whose
        task.limit_at = since + time_limit + kill_wait
        # The id goes last: it makes the rest count.
        task.task_id = task_id

    def ask_to_stop(self, task_id: int, now: float) -> None:
        """Note that a handler was asked to stop: its ``kill_wait`` counts from the first time."""
        for task in self._task_statuses:
            if task.task_id == task_id != task.stopped_id:
                task.stopped_at = now
                task.stopped_id = task_id

    def returned(self, task_id: int) -> None:
        """Record that a handler has ended, so that its processor is not killed for it."""
        for task in self._task_statuses:
            if task.task_id == task_id:
                task.returned_id = task_id

    def end(self, *, index: int = 0) -> None:
        self._task_statuses[index].task_id = 0

    def clear(self) -> None:
        """Clear the running tasks."""
        for task in self._task_statuses:
            task.task_id = 0

    def count(self, word: str, number: int = 1) -> None:
        with self._lock:
            setattr(self.counts, word, getattr(self.counts, word) + number)

    def totals(self) -> dict[str, int]:
        return {word: getattr(self.counts, word) for word in COUNTED}
