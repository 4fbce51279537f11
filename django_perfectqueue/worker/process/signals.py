"""The signals of a worker, and how its processes get them."""

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
"""What a supervisor says to its launcher: that it hears signals; that it takes tasks; and
when asked, that it goes on."""


class SignalQueue:
    """
    Signals as letters: they wait to be read, in the order in which they came.

    Its ``ear`` is a file to wait on, so that a signal ends the waiting at once.
    """

    def __init__(self) -> None:
        self.read_fd, self.slot = os.pipe()
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self.slot, False)

    def open(self, *extra: signal.Signals) -> None:
        """Take over this process's signals; those held back so far come in now."""
        for signum in (*ALL, DUMP, *extra):
            signal.signal(signum, ignore)
        signal.set_wakeup_fd(self.slot, warn_on_full_buffer=False)
        dump_when_asked()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*ALL, DUMP, *extra})

    def read(self) -> list[signal.Signals]:
        return [signal.Signals(number) for number in drain(self.read_fd) or b""]

    def forget(self) -> None:
        """Close, in a forked child, what is its parent's."""
        os.close(self.read_fd)
        os.close(self.slot)

    def close(self) -> None:
        """Leave what comes from now on to no one."""
        faulthandler.unregister(DUMP)
        signal.set_wakeup_fd(-1)
        os.close(self.read_fd)
        os.close(self.slot)


def ignore(signum: int, frame: object) -> None:
    """Be there: a signal without a handler would not reach the mailbox."""


def take_signals(handler: Callable[[int, object], None]) -> None:
    """Have all signals of a worker handled in a forked child; those held back so far come in."""
    for signum in ALL:
        signal.signal(signum, handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)


def dump_when_asked() -> None:
    """
    Have the stacks of all threads written to standard error for DUMP, in forked children too.

    It is done by the signal handler itself, even while C code keeps the interpreter's lock.
    """
    file = output.errors() or sys.__stderr__
    if file is not None:
        faulthandler.register(DUMP, file=file, chain=True)


def hold_back(*extra: signal.Signals) -> None:
    """Have signals wait until a mailbox is there for them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ALL, *extra})


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold signals back while a process is made that is to get its own."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reopen_logs() -> None:
    """Open the files of all log handlers anew; one that can't be opened goes on as it was."""
    refused = []
    for handler in file_handlers():
        handler.acquire()
        try:
            if handler.stream is not None:
                former, handler.stream = handler.stream, handler._open()
                former.close()
        except OSError as error:
            refused.append(error)
        finally:
            handler.release()
    for reason in refused:
        logger.error("A log file can't be opened anew; the old one goes on. %s", reason)


def file_handlers() -> set[logging.FileHandler]:
    names = list(logging.root.manager.loggerDict)
    loggers = [logging.getLogger(), *map(logging.getLogger, names)]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    return {handler for handler in handlers if isinstance(handler, logging.FileHandler)}
