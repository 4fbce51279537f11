"""
A host of its own, as its processes see it: its name, and a wall clock that can jump.

The clocks are those that Python code reads; the one by which processes wait stays, as it
does where a real clock is set.
"""

from __future__ import annotations

import datetime as module
import mmap
import os
import socket
import struct
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

OFFSET = struct.Struct("=d")
OURS = "django_perfectqueue"
TIME = time.time
TIME_NS = time.time_ns


class Clock:
    """How many seconds a host's clock is ahead; a page of memory that its processes share."""

    def __init__(self, file: Path) -> None:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            self.page = mmap.mmap(descriptor, mmap.PAGESIZE)
        finally:
            os.close(descriptor)

    @property
    def ahead(self) -> float:
        return float(OFFSET.unpack_from(self.page)[0])

    @ahead.setter
    def ahead(self, seconds: float) -> None:
        OFFSET.pack_into(self.page, 0, seconds)


class Here:
    clock: Clock | None = None


def ahead() -> float:
    return Here.clock.ahead if Here.clock else 0.0


class Kind(type):
    """Has a plain datetime pass for one of the class that jumps."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)


class Jumping(datetime, metaclass=Kind):
    """Makes plain datetimes, of a clock that is ahead."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return datetime(*args, **kwargs)  # noqa: DTZ001

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + timedelta(seconds=ahead())


def pretend(host: str, file: Path) -> None:
    """Be on that host from now on, with the clock of that file."""
    Here.clock = Clock(file)
    socket.gethostname = lambda: host
    time.time = lambda: TIME() + ahead()
    time.time_ns = lambda: TIME_NS() + int(ahead() * 1e9)
    from django.utils import timezone

    timezone.datetime = Jumping  # type: ignore[misc]
    spread()


def spread() -> None:
    """Have the modules of the package that were loaded so far read the clock that jumps."""
    for name, loaded in list(sys.modules.items()):
        if name.split(".")[0] == OURS and getattr(loaded, "datetime", None) is module.datetime:
            loaded.datetime = Jumping  # type: ignore[attr-defined]
