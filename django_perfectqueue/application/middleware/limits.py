"""Middleware that limits the time and the memory of handlers."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from django_perfectqueue.exceptions import TimeLimitError
from django_perfectqueue.lib.checks import number
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.lib.processes import resident

from ..recycle import replace_processor

if TYPE_CHECKING:
    from ..handler import Application
    from .chain import APerform, Perform

BYTES_PER_MIB = 1_048_576
MIB = number(0, above=True, of="MiB")
SECONDS = number(0, above=True, of="seconds")

logger = logging.getLogger("django_perfectqueue.runner")
processor_logger = logging.getLogger("django_perfectqueue.processor")

Seconds = Callable[["Application"], float | None]


class Around:
    """Puts a context manager, ``around()``, around functions and coroutines."""

    def around(self, handler: Application) -> AbstractContextManager[None]:
        raise NotImplementedError

    def around_perform(self, handler: Application, perform: Perform) -> object:
        with self.around(handler):
            return perform()

    async def aaround_perform(self, handler: Application, perform: APerform) -> object:
        with self.around(handler):
            return await perform()


class TimeLimit(Around):
    """
    Interrupts a handler after a number of seconds.

    ``seconds`` is a number, or a function that makes one of the handler, or None for no
    limit. The handler's ``kill()`` gets a TimeLimitError, as by ``time_limit``; but nothing
    ends it by force where it goes on: that is for the limits of the type.
    """

    def __init__(self, seconds: float | Seconds) -> None:
        if not callable(seconds):
            SECONDS.require("The limit", seconds, ValueError)
        self.seconds = seconds

    @contextmanager
    def around(self, handler: Application) -> Iterator[None]:
        seconds = self.seconds(handler) if callable(self.seconds) else self.seconds
        if seconds is None:
            yield
            return
        SECONDS.require("The limit", seconds, ValueError)
        # The loop itself does not keep a task alive that nobody refers to.
        endings: list[object] = []

        def end() -> None:
            if inspect.iscoroutine(outcome := kill(handler, seconds)):
                endings.append(asyncio.ensure_future(outcome))

        timer: asyncio.TimerHandle | threading.Timer
        if handler.is_async:
            timer = asyncio.get_running_loop().call_later(seconds, end)
        else:
            timer = threading.Timer(seconds, end)
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            timer.cancel()


class MemoryLimit(Around):
    """
    Replaces the processor when it holds more than a number of MiB after a task.

    It is read after each task of these handlers, whether or not that has failed; so use it
    for those that are known to leak, and RECYCLE for all.
    """

    def __init__(self, mib: float) -> None:
        self.mib = MIB.require("The limit", mib, ValueError)

    @contextmanager
    def around(self, handler: Application) -> Iterator[None]:
        try:
            yield
        finally:
            if (size := resident()) >= self.mib * BYTES_PER_MIB:
                processor_logger.warning(
                    "A processor has grown large by a task; it is replaced. pid=%s mib=%.0f"
                    " type=%s",
                    os.getpid(),
                    size / BYTES_PER_MIB,
                    printable(handler.task.type),
                )
                replace_processor()


def kill(handler: Application, seconds: float) -> object:
    reason = f"Task '{handler.task.key}' has run for longer than its time limit of {seconds:g} s."
    try:
        return handler.kill(TimeLimitError(reason))
    except Exception:
        logger.exception("A handler's kill() raised. key=%s", printable(handler.task.key))
        return None
