"""Interrupt a handler in the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")

SIGNAL = signal.SIGURG


class MainThreadInterrupter:
    """
    Lets another thread raise an exception in a call of the main thread, and only there.

    Each call has a token. Its exception is raised at most once, inside the call, by a
    signal, which also interrupts sleeping and waiting. The signal is SIGURG, which is ignored
    by default: a late or foreign one does no harm.
    """

    def __init__(self) -> None:
        self._inside: object = None
        self._wanted: tuple[object, BaseException] | None = None
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
            self._inside = None

    def interrupt(self, token: object, reason: BaseException) -> None:
        """Raise the reason inside the call with this token, unless it has ended."""
        self._wanted = token, reason
        if self._thread:
            signal.pthread_kill(self._thread, SIGNAL)

    def remind(self) -> None:
        """
        Send the signal again where its exception has yet to be raised.

        One that comes just before a system call that blocks does not end it.
        """
        wanted = self._wanted
        if wanted is not None and wanted[0] is self._inside:
            signal.pthread_kill(self._thread, SIGNAL)

    def _deliver(self, signum: int = 0, frame: object = None) -> None:
        wanted = self._wanted
        if wanted is not None and wanted[0] is self._inside:
            self._inside = self._wanted = None
            raise wanted[1]
