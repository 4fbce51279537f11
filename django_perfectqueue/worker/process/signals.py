"""The signals of a worker, and how its processes receive them."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator

from . import output
from .wakeup import drain

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

HEARS, READY, ALIVE = b"h", b"r", b"a"
"""Bytes from a supervisor to its launcher: it handles signals; it takes tasks; it is alive."""

GO, REPLACED = b"g", b"s"
"""Bytes from a launcher to a supervisor: it may begin, if forked; another one takes tasks."""


class SignalQueue:
    """
    Signals in the order of their arrival, read from a pipe.

    ``set_wakeup_fd`` writes them to the pipe, so that waiting on ``read_fd`` ends at once.
    """

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self.write_fd, False)

    def open(self) -> None:
        """Install the handlers and unblock the signals; blocked ones arrive now."""
        for signum in HELD_BACK:
            signal.signal(signum, ignore)
        signal.set_wakeup_fd(self.write_fd, warn_on_full_buffer=False)
        dump_when_asked()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)

    def read(self) -> list[signal.Signals]:
        return [signal.Signals(number) for number in drain(self.read_fd) or b""]

    def forget(self) -> None:
        """Close the pipe; a forked child closes its parent's."""
        os.close(self.read_fd)
        os.close(self.write_fd)

    def close(self) -> None:
        """Stop receiving signals."""
        faulthandler.unregister(DUMP)
        signal.set_wakeup_fd(-1)
        os.close(self.read_fd)
        os.close(self.write_fd)


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
