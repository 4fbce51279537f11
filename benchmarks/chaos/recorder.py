"""
What the handlers see and do, and which attempts run at once.

Whether two attempts of a task run at once is not left to times: each attempt holds a lock
in a file while it runs, which the kernel takes from it no later than its process is seen to
be dead. Who begins looks for the locks of other attempts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from typing import Any

from benchmarks.recorder import Recorder

from .terms import HOST, this_folder

FLOCK = struct.Struct("hhqqi4x")
SLOTS = 64
"""How many attempts of a task can have locks of their own, of how many bytes."""


class AttemptRecorder(Recorder):
    """Opened by each process for itself: a lock belongs to the process that took it."""

    def __init__(self) -> None:
        files = this_folder()
        super().__init__(files.events, pid=os.getpid(), host=os.environ[HOST])
        self.locks = os.open(files.locks, os.O_CREAT | os.O_CLOEXEC | os.O_RDWR, 0o600)

    def record(self, event: str, lease: Any, **more: Any) -> None:
        attempt = {"task": lease.task_id, "attempt": lease.attempt, "holder": lease.holder}
        self.write(event=event, **attempt, **more)

    def begin(self, lease: Any, edit: str | None) -> None:
        """Say that an attempt runs from now on, and who else runs the task at this moment."""
        rival = self.rival(lease)
        self.lock(fcntl.F_WRLCK, lease)
        self.record("began", lease, rival=rival, edit=edit)

    def end(self, lease: Any, how: str) -> None:
        """Say that an attempt has done all that it does, but for writing what became of it."""
        self.record("ended", lease, how=how)
        self.lock(fcntl.F_UNLCK, lease)

    def lock(self, kind: int, lease: Any) -> None:
        """Take or leave a lock; where a rival has the very same one, that has been seen."""
        start = lease.task_id * SLOTS + lease.holder % SLOTS
        with contextlib.suppress(BlockingIOError):
            fcntl.fcntl(self.locks, fcntl.F_SETLK, FLOCK.pack(kind, os.SEEK_SET, start, 1, 0))

    def rival(self, lease: Any) -> int | None:
        """Return another process that runs the task at this moment, if one does."""
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, lease.task_id * SLOTS, SLOTS, 0)
        kind, *_, pid = FLOCK.unpack(fcntl.fcntl(self.locks, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else int(pid)


class Own:
    recorder: AttemptRecorder | None = None


def recorder() -> AttemptRecorder:
    """Return this process's own."""
    if Own.recorder is None or Own.recorder.known["pid"] != os.getpid():
        Own.recorder = AttemptRecorder()
    return Own.recorder
