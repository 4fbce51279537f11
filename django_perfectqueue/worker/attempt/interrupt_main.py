"""Breaking a handler off from outside."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")

SIGNAL = signal.SIGURG


class MainThreadInterrupter:
    """
    Lets another thread raise an exception in what the main thread runs, and nowhere else.

    Each call has a token. Its exception is raised at most once, inside the call, by a
    signal, so that it breaks off sleeping and waiting too. SIGURG, because by default it
    does nothing: one that comes late or from elsewhere does no harm.
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
            if self._wanted is not None:
                self._deliver()
            return function()
        finally:
            self._inside = None

    def interrupt(self, token: object, reason: BaseException) -> None:
        """Raise the reason inside the call with this token, if it has not ended by then."""
        self._wanted = token, reason
        if self._thread:
            signal.pthread_kill(self._thread, SIGNAL)

    def _deliver(self, signum: int = 0, frame: object = None) -> None:
        wanted = self._wanted
        if wanted is not None and wanted[0] is self._inside:
            self._inside = self._wanted = None
            raise wanted[1]
