"""
What the handlers see and do, and what is asked of the queue and answered, in a file that outlives
their processes and that no clock can spoil.

Each line is written by one call that appends, so processes don't mix theirs. Times are of the
clock that all processes of a machine share and that nobody sets.

Whether two attempts of a task run at once is not left to times: each attempt holds a lock
in a file while it runs, which the kernel takes from it no later than its process is seen to
be dead. Who begins looks for the locks of other attempts.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .terms import HOST, this_folder

FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
FLOCK = struct.Struct("hhqqi4x")
SLOTS = 64
"""How many attempts of a task can have locks of their own, of how many bytes."""


class Recorder:
    """Opened by each process for itself: a lock belongs to the process that took it."""

    def __init__(self) -> None:
        files = this_folder()
        self.known = {"pid": os.getpid(), "host": os.environ[HOST]}
        # A pid is used again sometimes, by a process that begins later.
        self.numbers = itertools.count(time.monotonic_ns())
        self.events = os.open(files.events, FLAGS, 0o600)
        self.locks = os.open(files.locks, os.O_CREAT | os.O_CLOEXEC | os.O_RDWR, 0o600)

    def write(self, **event: Any) -> None:
        line = {"at": time.monotonic(), **self.known, **event}
        os.write(self.events, json.dumps(line).encode() + b"\n")

    def ask(self, verb: str, given: dict[str, Any]) -> int:
        """Write what is asked, before it is; return the number under which it is answered."""
        number = next(self.numbers)
        self.write(number=number, verb=verb, given=given)
        return number

    def answer(self, number: int, answer: str, reported: dict[str, Any]) -> None:
        self.write(number=number, answer=answer, reported=reported)

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
    recorder: Recorder | None = None


def recorder() -> Recorder:
    """Return this process's own."""
    if Own.recorder is None or Own.recorder.known["pid"] != os.getpid():
        Own.recorder = Recorder()
    return Own.recorder


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open() as opened:
        for line in opened:
            yield json.loads(line)
