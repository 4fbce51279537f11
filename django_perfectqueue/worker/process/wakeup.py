"""Wake up a waiting process or thread."""

from __future__ import annotations

import contextlib
import math
import os
import select
from collections.abc import Sequence

MOUTHFUL = 4096


class Wakeup:
    """
    A pipe that ends a wait, for signal handlers, other threads and other processes.

    A wake() before the wait counts: the next wait() returns at once.
    """

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self.write_fd, False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.write_fd, b"!")

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds; return whether wake() was called."""
        woken = bool(readable([self.read_fd], timeout))
        if woken:
            drain(self.read_fd)
        return woken

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)


def readable(files: Sequence[int], timeout: float | None) -> list[int]:
    """Return the descriptors that are readable or closed at the other end."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    # Rounded up: poll() would spin through the last fraction of a millisecond.
    wait = None if timeout is None else max(0, math.ceil(timeout * 1000))
    return [file for file, _event in poll.poll(wait)]


def drain(file: int) -> bytes | None:
    """Return all data available now; None when the other end is closed."""
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
