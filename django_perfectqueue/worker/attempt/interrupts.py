"""Interrupt a handler: in the main thread, and in other threads."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic

R = TypeVar("R")

SIGNAL = signal.SIGURG
LIBRARIES = ("django_perfectqueue", "django", "logging", "sentry_sdk")
TURNS = (Atomic.__enter__.__code__, Atomic.__exit__.__code__)
HOOKS = BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__


class MainThreadInterrupter:
    """
    Lets another thread raise an exception in a call of the main thread, and only there.

    Each call has a token. Its exception is raised inside the call, by a signal, which also
    interrupts sleeping and waiting; and again only where a library has caught it. The signal
    is SIGURG, which is ignored by default: a late or foreign one does no harm.
    """

    def __init__(self) -> None:
        self._inside: object = None
        self._wanted: tuple[object, BaseException] | None = None
        self._raised: BaseException | None = None
        self._thread = 0

    def install(self) -> None:
        self._thread = threading.get_ident()
        signal.signal(SIGNAL, self._deliver)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})

    def call(self, token: object, function: Callable[[], R]) -> R:
        try:
            self._inside = token
            # The interrupt may have come before the call, when its signal found nobody inside.
            if self._wanted is not None:
                self._deliver()
            return function()
        finally:
            self._inside = self._raised = None

    def interrupt(self, token: object, reason: BaseException) -> None:
        """Raise the reason inside the call with this token, unless it has ended."""
        self._wanted = token, reason
        if self._thread:
            signal.pthread_kill(self._thread, SIGNAL)

    def remind(self) -> None:
        """
        Send the signal again where its exception has yet to be raised, or a library has
        caught it.

        One that comes just before a system call that blocks does not end it.
        """
        if self._due() is not None:
            signal.pthread_kill(self._thread, SIGNAL)

    def _due(self) -> BaseException | None:
        """Return what is to be raised now, if anything."""
        wanted, raised = self._wanted, self._raised
        if wanted is not None and wanted[0] is self._inside:
            return wanted[1]
        return raised if is_swallowed(raised, self._thread) else None

    def _deliver(self, signum: int = 0, frame: FrameType | None = None) -> None:
        if (reason := self._due()) is not None and not turns_transaction(frame):
            self._inside = self._wanted = None
            self._raised = reason
            raise reason.with_traceback(None)


def turns_transaction(frame: FrameType | None) -> bool:
    """
    Return whether a frame is where Django begins or ends a transaction.

    An exception there may skip the rollback, and Django's return to autocommit then commits on
    MySQL what was to be undone. A reminder comes after it.
    """
    while frame is not None and frame.f_code is not HOOKS:
        if frame.f_code in TURNS:
            return True
        frame = frame.f_back
    return False


def is_swallowed(reason: BaseException | None, thread: int) -> bool:
    """
    Return whether a library has caught what was raised in a thread: Django, logging and Sentry
    catch all exceptions of hooks, receivers and records.

    What a handler has caught is its own affair, and while any code still handles the exception
    it may raise it again.
    """
    if reason is None or reason.__traceback__ is None:
        return False
    handled: object = sys._current_exceptions().get(thread)
    error = handled[1] if isinstance(handled, tuple) else handled  # A tuple before Python 3.12.
    while isinstance(error, BaseException):
        if error is reason:
            return False
        error = error.__context__
    caught_in = reason.__traceback__.tb_frame.f_globals.get("__name__") or ""
    return caught_in.partition(".")[0] in LIBRARIES


# Interrupt a handler in a thread other than the main one.


MOMENT = 0.0001

raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)


class ThreadInterrupter:
    """
    Lets other threads raise an exception in a call of the thread that created it.

    Signals reach only the main thread; here the interpreter raises the exception before its
    next instruction. So calls into C are not interrupted, not even sleeping.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._inside: object = None
        self._wanted: dict[object, BaseException] = {}
        self._sending = False
        self._sent = False
        self._raised: BaseException | None = None
        self._senders = threading.Lock()

    def call(self, token: object, function: Callable[[], R]) -> R:
        try:
            self._inside = token
            # pop() is atomic: exactly one thread gets the reason, this one or the sender.
            if (reason := self._wanted.pop(token, None)) is not None:
                self._inside = None
                raise reason
            return function()
        finally:
            self._leave()

    def interrupt(self, token: object, reason: BaseException) -> None:
        """Raise the reason inside the call with this token, unless it has ended."""
        self._wanted[token] = reason
        self._send(token)

    def remind(self) -> None:
        """Raise a reason again that a library has caught."""
        if is_swallowed(self._raised, self._thread):
            self._send(None)

    def _send(self, token: object) -> None:
        """Raise what is wanted for this token; with None what a library has caught."""
        with self._senders:
            try:
                self._sending = True
                if token is None:
                    reason = self._raised if is_swallowed(self._raised, self._thread) else None
                else:
                    reason = self._wanted.pop(token, None) if self._inside is token else None
                if reason is not None:
                    reason.__traceback__ = None
                    self._inside, self._raised, self._sent = None, reason, True
                    raise_in(self._thread, ctypes.py_object(class_returning(reason)))
            finally:
                self._sending = False

    def _leave(self) -> None:
        """Leave a call; drop an exception that was sent and not raised yet."""
        try:
            self._close()
        except BaseException:
            # The exception arrived within _close(). There is only one, so the second run ends.
            self._close()

    def _close(self) -> None:
        self._inside = self._raised = None
        while self._sending:
            time.sleep(MOMENT)
        self._wanted.clear()
        if self._sent:
            self._sent = False
            # An exception that is still pending is raised when a loop jumps back. Withdrawing it
            # in C would leave Python before 3.12 checking for it for ever, and hang a profiler.
            for _ in range(2):
                pass


Interrupter = MainThreadInterrupter | ThreadInterrupter


def class_returning(reason: BaseException) -> type[BaseException]:
    """Return a class whose instance is ``reason``: the C function accepts only classes."""
    kind = type(reason)
    return type(kind.__name__, (kind,), {"__new__": lambda cls, *args, **kwargs: reason})
