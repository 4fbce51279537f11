"""The signals of a worker, how its processes receive them, wake up and dump their stacks."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import math
import os
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from django_perfectqueue.lib.processes import send

from . import output

logger = logging.getLogger("django_perfectqueue.worker")

STOP = signal.SIGTERM
STOP_NOW = signal.SIGQUIT
DETACH = signal.SIGINT
RESTART = signal.SIGUSR1
RESTART_NOW = signal.SIGHUP
REOPEN_LOGS = signal.SIGUSR2
DUMP = signal.SIGTTIN
ALL = (STOP, STOP_NOW, DETACH, RESTART, RESTART_NOW, REOPEN_LOGS)
HELD_BACK = {*ALL, DUMP, signal.SIGCHLD}

# Bytes from a supervisor to its launcher: it handles signals; it takes tasks; it is alive.
HEARS, READY, ALIVE = b"h", b"r", b"a"

# Bytes from a launcher to a supervisor: it may begin, if forked; another one takes tasks.
GO, REPLACED = b"g", b"s"


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


class SignalQueue(Wakeup):
    """
    Signals in the order of their arrival, read from a pipe.

    ``set_wakeup_fd`` writes them to the pipe, so that waiting on ``read_fd`` ends at once.
    A forked child closes its parent's.
    """

    def open(self) -> None:
        """Install the handlers and unblock the signals; blocked ones arrive now."""
        for signum in HELD_BACK:
            signal.signal(signum, ignore)
        signal.set_wakeup_fd(self.write_fd, warn_on_full_buffer=False)
        dump_when_asked()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)

    def read(self) -> list[signal.Signals]:
        return [signal.Signals(number) for number in drain(self.read_fd) or b""]

    def stop(self) -> None:
        """Stop receiving signals."""
        faulthandler.unregister(DUMP)
        signal.set_wakeup_fd(-1)
        self.close()


def ignore(signum: int, frame: object) -> None:
    """Do nothing: the wakeup fd gets only signals that have a Python handler."""


def take_signals(handler: Callable[[int, object], None]) -> None:
    """Handle all signals of a worker in a forked child; blocked ones arrive now."""
    for signum in ALL:
        signal.signal(signum, handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)


def dump_when_asked() -> None:
    """
    Write the stacks of all threads to standard error on DUMP, in forked children too.

    faulthandler does it in the C signal handler, even while C code holds the interpreter lock.
    """
    file = output.errors() or sys.__stderr__
    if file is not None:
        faulthandler.register(DUMP, file=file, chain=True)


def hold_back(*extra: signal.Signals) -> None:
    """Block signals until a SignalQueue receives them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ALL, *extra})


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block signals while a process is started that installs its own handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reopen_logs() -> None:
    """Reopen the files of all log handlers; keep the old file where that fails."""
    refused = []
    for handler in output.log_handlers():
        if not isinstance(handler, logging.FileHandler) or handler.stream is None:
            continue
        with handler.lock or contextlib.nullcontext():
            try:
                former, handler.stream = handler.stream, handler._open()
                former.close()
            except OSError as error:
                refused.append(error)
    for reason in refused:
        logger.error("A log file can't be reopened; the old one stays in use. %s", reason)


# Wait for several, and read what is there.


MOUTHFUL = 4096


def readable(files: Sequence[int], timeout: float) -> list[int]:
    """Return the descriptors that are readable or closed at the other end."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    # Rounded up: poll() would spin through the last fraction of a millisecond.
    wait = max(0, math.ceil(timeout * 1000))
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


# Request stack dumps from the processes of a worker, one after another.


PAUSE = 0.1


class StackDumps:
    """
    Requests a stack dump of each process, below a line that names the process.

    A dump consists of many small writes to a shared standard error. So the next request
    follows after a pause.
    """

    def __init__(self) -> None:
        self.queued: deque[tuple[int, str]] = deque()
        self.next_at = 0.0

    def ask(self, processes: Iterable[tuple[int, str]]) -> None:
        """Queue processes, given as pid and title; each at most once."""
        known = {pid for pid, _title in self.queued}
        self.queued.extend(one for one in processes if one[0] not in known)

    def go_on(self, now: float) -> None:
        """Request the next dump, unless it is too early."""
        if not self.queued or now < self.next_at:
            return
        pid, title = self.queued.popleft()
        output.put(f"\n{title}", sys.stderr)
        send(pid, DUMP)
        self.next_at = now + PAUSE

    def due(self) -> list[float]:
        """Return when the next request is due, if any is queued."""
        return [self.next_at] if self.queued else []
