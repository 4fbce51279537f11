"""Breaking off what another thread than the main one runs."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")

MOMENT = 0.0001

raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
NOTHING = ctypes.py_object()


class ThreadInterrupter:
    """
    Lets other threads raise an exception in what its own thread runs, and nowhere else.

    As Guard does by a signal, which only the main thread can have. The interpreter raises
    it before the next instruction: so a call into C is not broken off, sleeping neither.
    It is made in the thread for which it is.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._inside: object = None
        self._wanted: dict[object, BaseException] = {}
        self._sending = False
        self._sent = False
        self._senders = threading.Lock()

    def call(self, token: object, function: Callable[[], R]) -> R:
        try:
            self._inside = token
            # Whoever takes it out of there raises it: this thread, or the one that sends it.
            if (reason := self._wanted.pop(token, None)) is not None:
                self._inside = None
                raise reason
            return function()
        finally:
            self._leave()

    def interrupt(self, token: object, reason: BaseException) -> None:
        """Raise the reason inside the call with this token, if it has not ended by then."""
        with self._senders:
            self._wanted[token] = reason
            try:
                self._sending = True
                if self._inside is token and self._wanted.pop(token, None) is not None:
                    self._inside = None
                    self._sent = True
                    raise_in(self._thread, ctypes.py_object(kind_that_is(reason)))
            finally:
                self._sending = False

    def _leave(self) -> None:
        """Leave a call; what was sent and has not come by then comes no more."""
        try:
            self._close()
        except BaseException:
            # It came in the middle of this, and there is only one: nothing disturbs any more.
            self._close()

    def _close(self) -> None:
        self._inside = None
        while self._sending:
            time.sleep(MOMENT)
        if self._sent:
            raise_in(self._thread, NOTHING)
            self._sent = False
        self._wanted.clear()


def kind_that_is(reason: BaseException) -> type[BaseException]:
    """Return a class whose only instance is this one: the interpreter takes no instance."""
    kind = type(reason)
    return type(kind.__name__, (kind,), {"__new__": lambda cls, *args, **kwargs: reason})
