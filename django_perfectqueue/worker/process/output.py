"""Standard output and error that never block the writer."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
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
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast, get_type_hints

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# Memory that forked processes share, with named fields.


C_TYPES: dict[Any, Any] = {bool: ctypes.c_bool, int: ctypes.c_int64, float: ctypes.c_double}

S = TypeVar("S", bound=ctypes.Structure)
C = TypeVar("C", bound="ctypes.Structure | ctypes.c_double | ctypes.Array[Any]")


def with_fields(kind: type[S]) -> type[S]:
    """Lay out a structure by its annotations; each field is read and written in one piece."""
    hints = get_type_hints(kind).items()
    kind._fields_ = [(name, C_TYPES.get(hint, hint)) for name, hint in hints if name[0] != "_"]
    return kind


def shared(kind: type[C]) -> C:
    """Return a value of zeros in memory that this process and its later forks share."""
    page = mmap.mmap(-1, ctypes.sizeof(kind))
    return cast(C, kind.from_buffer(page))


MOST_KEPT = 1_048_576
LONGEST_WRITE = 4_096
LAST_TRIES = 1.0
COUNTERS = 509
ERRORS = 2

# Each process writes a counter of its own, so that they need no lock.
dropped = shared(ctypes.c_int64 * COUNTERS)


class NonBlockingOutput(io.RawIOBase):
    """
    Writes to a file without blocking, and buffers the rest.

    Otherwise a terminal stopped by Ctrl-S, or a pipe whose reader hangs, would stop all
    tasks. Beyond a megabyte, lines are dropped and counted. No thread writes, since the
    supervisor must have no other thread when it forks.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self.own = reopened(file)
        is_socket = stat.S_ISSOCK(os.fstat(file).st_mode)
        self.channel = socket.socket(fileno=os.dup(file)) if is_socket else None
        self.reset()
        os.register_at_fork(after_in_child=self.reset)
        atexit.register(self.finish)

    def reset(self) -> None:
        """Empty the buffer; after a fork its content belongs to the parent."""
        self.waiting = bytearray()
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
            if len(self.waiting) + len(text) <= MOST_KEPT:
                self.waiting += text
                self.push()
            else:
                self.drop(text)
        return len(text)

    def drop(self, text: bytes) -> None:
        lines = max(1, text.count(b"\n"))
        self.lost += lines
        dropped[os.getpid() % COUNTERS] += lines

    def push(self) -> None:
        """Write what the file accepts now; drop the buffer when its reader is gone."""
        with self.lock:
            while self.waiting or self.lost:
                if not self.waiting:
                    text = f"\n{self.lost} lines of output were dropped: nobody read them.\n"
                    self.waiting += text.encode()
                    self.lost = 0
                # Whole lines of a size that a pipe takes in one piece, so that processes
                # don't mix theirs.
                end = self.waiting.rfind(b"\n", 0, LONGEST_WRITE) + 1
                try:
                    written = self.send(bytes(self.waiting[: end or LONGEST_WRITE]))
                except BlockingIOError:
                    return
                except OSError:
                    self.drop(bytes(self.waiting))
                    self.waiting.clear()
                    self.lost = 0
                    return
                del self.waiting[:written]

    def send(self, data: bytes) -> int:
        """Write to the file; raise BlockingIOError instead of waiting."""
        if self.channel is not None:
            return self.channel.send(data, socket.MSG_DONTWAIT)
        if not is_writable(self.own, 0.0):
            raise BlockingIOError
        return os.write(self.own, data)

    def finish(self) -> None:
        """Write the rest, waiting up to a second for a slow reader."""
        until = time.monotonic() + LAST_TRIES
        self.push()
        while self.waiting and (left := until - time.monotonic()) > 0:
            is_writable(self.file, left)
            self.push()


def is_writable(file: int, seconds: float) -> bool:
    """Return whether a file takes something within some seconds."""
    poll = select.poll()
    poll.register(file, select.POLLOUT)
    return bool(poll.poll(seconds * 1000))


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


outlets: list[NonBlockingOutput] = []


def install() -> None:
    """Route all that this process and its children print and log through outlets."""
    for name in ("stdout", "stderr"):
        before = getattr(sys, name)
        try:
            after = through_outlet(before)
        except (AttributeError, OSError, ValueError):
            continue  # It has no file.
        setattr(sys, name, after)
        for handler in log_handlers():
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.setStream(after)


def through_outlet(stream: TextIO) -> TextIO:
    """Return a non-blocking stream to the same file, which escapes what its encoding has not."""
    stream.flush()
    outlet = NonBlockingOutput(stream.fileno())
    outlets.append(outlet)
    return io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )


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


def put(line: str, stream: TextIO) -> None:
    """Write a line at once, where the stream is there and open."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stream.write(f"{line}\n")
        stream.flush()


def finish() -> None:
    """Write the buffers before this process ends."""
    for outlet in outlets:
        outlet.finish()
