"""Waking a sleeper."""

from __future__ import annotations

import contextlib
import math
import os
import select
from collections.abc import Sequence

MOUTHFUL = 4096


class Wakeup:
    """
    Wakes the one who waits: rung by a signal handler, another thread or another process.

    A ring that comes before the waiting counts.
    """

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self.write_fd, False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.write_fd, b"!")

    def wait(self, timeout: float) -> bool:
        """Wait for a ring, or so many seconds; tell whether it rang."""
        heard = bool(readable([self.read_fd], timeout))
        if heard:
            drain(self.read_fd)
        return heard

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)


def readable(files: Sequence[int], timeout: float | None) -> list[int]:
    """Return which of these have something to read, or have been closed at the other end."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    # A wait that is cut short would be begun again and again in its last half millisecond.
    wait = None if timeout is None else max(0, math.ceil(timeout * 1000))
    return [file for file, _event in poll.poll(wait)]


def drain(file: int) -> bytes | None:
    """Return all that can be read without waiting; None when the other end is closed."""
    taken = b""
    while True:
        try:
            part = os.read(file, MOUTHFUL)
        except BlockingIOError:
            return taken
        except OSError:
            return taken or None
        if not part:
            return taken or None
        taken += part
