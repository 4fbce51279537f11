"""
What processors did and when, in a file that outlives them: every acquire, and the begin and
end of every task.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import probe

RECORD = struct.Struct("=iiiq")
ACQUIRED, BEGAN, ENDED = 1, 2, 3


class Event(NamedTuple):
    kind: int
    pid: int
    task: int
    at: float
    """Seconds of the clock that all processes of a machine share."""


def path() -> Path:
    return Path(f"{os.environ[probe.VARIABLE]}-restarts")


def note(kind: int, task: int = 0) -> None:
    """Write one event, in one piece, so that processes don't mix theirs."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    if Writer.descriptor < 0:
        Writer.descriptor = os.open(path(), flags, 0o600)
    os.write(Writer.descriptor, RECORD.pack(kind, os.getpid(), task, time.monotonic_ns()))


class Writer:
    descriptor = -1


class Reader:
    """Reads on from where it left off."""

    def __init__(self) -> None:
        path().touch()
        self.events: list[Event] = []
        self.begun = 0

    def read(self) -> list[Event]:
        with path().open("rb") as file:
            file.seek(len(self.events) * RECORD.size)
            data = file.read()
        whole = len(data) - len(data) % RECORD.size
        for kind, pid, task, at in RECORD.iter_unpack(data[:whole]):
            self.events.append(Event(kind, pid, task, at / 1e9))
            self.begun += kind == BEGAN
        return self.events
