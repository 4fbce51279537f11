"""
What processes did and when, in a file that outlives them and that no clock can spoil.

Each line is written by one call that appends, so processes don't mix theirs. Times are of
the clock that all processes of a machine share and that nobody sets.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import probe

ACQUIRED, BEGAN, ENDED, BORN = "acquired", "began", "ended", "born"
"""What a worker's processors note, beside the types of tasks that have begun."""
EVENTS = "events"
"""The file of a run for what handlers do, and for what is asked of the queue and answered."""
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Recorder:
    """Opened by each process for itself; ``known`` stands in each of its lines."""

    def __init__(self, file: Path, **known: Any) -> None:
        self.known = known
        # A pid is used again sometimes, by a process that begins later.
        self.numbers = itertools.count(time.monotonic_ns())
        self.file = os.open(file, FLAGS, 0o600)

    def write(self, **event: Any) -> None:
        line = {"at": time.monotonic(), **self.known, **event}
        os.write(self.file, json.dumps(line).encode() + b"\n")

    def ask(self, verb: str, given: dict[str, Any]) -> int:
        """Write what is asked, before it is; return the number under which it is answered."""
        number = next(self.numbers)
        self.write(number=number, verb=verb, given=given)
        return number

    def answer(self, number: int, answer: str, reported: dict[str, Any]) -> None:
        self.write(number=number, answer=answer, reported=reported)


class Own:
    """This process's own recorder; a fork of it has another."""

    pid = 0
    recorder: Recorder


def note(event: str, **more: Any) -> None:
    """Record an event of a sample's worker."""
    if Own.pid != os.getpid():
        Own.pid = os.getpid()
        Own.recorder = Recorder(sample_file(), pid=Own.pid)
    Own.recorder.write(event=event, **more)


def sample_file() -> Path:
    return Path(os.environ[probe.VARIABLE]).with_name(EVENTS)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open() as opened:
        for line in opened:
            yield json.loads(line)


class Reader:
    """Reads on in a sample's file from where it left off."""

    def __init__(self) -> None:
        self.file = sample_file()
        self.file.touch()
        self.at = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the events that have come since the last call."""
        with self.file.open("rb") as opened:
            opened.seek(self.at)
            whole, end, _rest = opened.read().rpartition(b"\n")
        self.at += len(whole) + len(end)
        return [json.loads(line) for line in whole.splitlines()]
