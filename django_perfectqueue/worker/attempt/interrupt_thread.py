"""Interrupt a handler in a thread other than the main one."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .interrupt_main import is_swallowed

R = TypeVar("R")

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


def class_returning(reason: BaseException) -> type[BaseException]:
    """Return a class whose instance is ``reason``: the C function accepts only classes."""
    kind = type(reason)
    return type(kind.__name__, (kind,), {"__new__": lambda cls, *args, **kwargs: reason})
