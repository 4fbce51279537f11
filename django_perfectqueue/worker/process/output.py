"""Standard output and error that never block the writer."""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import mmap
import os
import select
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MOST_KEPT = 1_048_576
LONGEST_WRITE = 4_096
LAST_TRIES = 1.0
SLOTS = 509
NUMBER = 8
ERRORS = 2


class DroppedLines:
    """The number of dropped lines, in memory that the processes of a worker share."""

    def __init__(self) -> None:
        self.page = mmap.mmap(-1, SLOTS * NUMBER)
        self.numbers = memoryview(self.page).cast("q")

    def add(self, lines: int) -> None:
        """Add to the counter of this process; a counter has one writer and needs no lock."""
        self.numbers[os.getpid() % SLOTS] += lines

    def total(self) -> int:
        return sum(self.numbers)


dropped = DroppedLines()


class NonBlockingOutput(io.RawIOBase):
    """
    Writes to a file without blocking, and buffers the rest.

    Otherwise a terminal stopped by Ctrl-S, or a pipe whose reader hangs, would stop all
    tasks. Beyond a megabyte, lines are dropped and counted.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self.own = reopened(file)
        self.send = sender(self.own)
        self.reset()
        os.register_at_fork(after_in_child=self.reset)
        atexit.register(self.finish)

    def reset(self) -> None:
        """Empty the buffer; after a fork its content belongs to the parent."""
        self.waiting: deque[bytes] = deque()
        self.size = 0
        self.lost = 0
        self.lock = threading.RLock()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.file

    def isatty(self) -> bool:
        return os.isatty(self.file)

    def write(self, data: ReadableBuffer) -> int:
        """Accept all data: write it, buffer it or drop it."""
        text = bytes(data)
        with self.lock:
            self.push()
            if self.size + len(text) <= MOST_KEPT:
                self.keep(text)
                self.push()
            else:
                self.drop(text)
        return len(text)

    def drop(self, text: bytes) -> None:
        lines = max(1, text.count(b"\n"))
        self.lost += lines
        dropped.add(lines)

    def keep(self, text: bytes) -> None:
        for start in range(0, len(text), LONGEST_WRITE):
            self.waiting.append(text[start : start + LONGEST_WRITE])
        self.size += len(text)

    def push(self) -> None:
        """Write what the file accepts now; drop the buffer when its reader is gone."""
        with self.lock:
            while self.waiting:
                try:
                    written = self.send(self.waiting[0])
                except BlockingIOError:
                    return
                except OSError:
                    self.drop(b"".join(self.waiting))
                    self.waiting.clear()
                    self.size = self.lost = 0
                    return
                self.size -= written
                rest = self.waiting.popleft()[written:]
                if rest:
                    self.waiting.appendleft(rest)
            if self.lost:
                lost, self.lost = self.lost, 0
                self.keep(dropped_message(lost))
                self.push()

    def finish(self) -> None:
        """Write the rest, waiting up to a second for a slow reader."""
        until = time.monotonic() + LAST_TRIES
        self.push()
        while self.waiting and (left := until - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self.file, select.POLLOUT)
            poll.poll(left * 1000)
            self.push()


def dropped_message(lines: int) -> bytes:
    text = f"{lines} lines of output were dropped: nobody read them."
    return f"\n{text}\n".encode(errors="replace")


def reopened(file: int) -> int:
    """
    Return a second, non-blocking file description of a pipe or a terminal.

    O_NONBLOCK on the original would apply to all programs that share it. Other files never
    block; they, and files that can't be opened again, are returned as they are.
    """
    mode = os.fstat(file).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{file}", flags)
    return file


def sender(file: int) -> Callable[[bytes], int]:
    """Return a function that writes to a file and raises BlockingIOError instead of waiting."""
    if stat.S_ISSOCK(os.fstat(file).st_mode):
        channel = socket.socket(fileno=os.dup(file))
        return lambda data: channel.send(data, socket.MSG_DONTWAIT)
    return lambda data: write_if_ready(file, data)


def write_if_ready(file: int, data: bytes) -> int:
    poll = select.poll()
    poll.register(file, select.POLLOUT)
    if not poll.poll(0):
        raise BlockingIOError
    return os.write(file, data)


outlets: list[NonBlockingOutput] = []


def install() -> None:
    """Route all that this process and its children print and log through outlets."""
    for name in ("stdout", "stderr"):
        before = getattr(sys, name)
        if (after := through_outlet(before)) is not None:
            setattr(sys, name, after)
            redirect_logs(before, after)


def through_outlet(stream: TextIO) -> TextIO | None:
    """Return a non-blocking stream to the same file; None without a file."""
    try:
        stream.flush()
        outlet = NonBlockingOutput(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None
    outlets.append(outlet)
    return io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )


def redirect_logs(before: TextIO, after: TextIO) -> None:
    for handler in log_handlers():
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(after)


def log_handlers() -> set[logging.Handler]:
    """Return the handlers of all loggers."""
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    return {handler for logger in loggers for handler in logger.handlers}


def errors() -> int | None:
    """Return the non-blocking descriptor of standard error, if it has one."""
    return next((outlet.own for outlet in outlets if outlet.file == ERRORS), None)


def push() -> None:
    """Write what the files accept of the buffers now."""
    for outlet in outlets:
        outlet.push()


def finish() -> None:
    """Write the buffers before this process ends."""
    for outlet in outlets:
        outlet.finish()
