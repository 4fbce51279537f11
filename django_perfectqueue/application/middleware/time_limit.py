"""A time limit within that of the type."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django_perfectqueue.exceptions import TimeLimitError
from django_perfectqueue.lib.checks import number
from django_perfectqueue.lib.printable import printable

if TYPE_CHECKING:
    from ..handler import Application
    from .chain import APerform, Perform

logger = logging.getLogger("django_perfectqueue.runner")

Seconds = Callable[["Application"], float | None]


class TimeLimit:
    """
    Interrupts a handler after a number of seconds.

    ``seconds`` is a number, or a function that makes one of the handler, or None for no
    limit. The handler's ``kill()`` gets a TimeLimitError, as by ``time_limit``; but nothing
    ends it by force where it goes on: that is for the limits of the type.
    """

    def __init__(self, seconds: float | Seconds) -> None:
        if not callable(seconds):
            check(seconds)
        self.seconds = seconds

    def around_perform(self, handler: Application, perform: Perform) -> object:
        with timed(handler, self.seconds_for(handler)):
            return perform()

    async def aaround_perform(self, handler: Application, perform: APerform) -> object:
        with timed_in_loop(handler, self.seconds_for(handler)):
            return await perform()

    def seconds_for(self, handler: Application) -> float | None:
        if not callable(self.seconds):
            return self.seconds
        seconds = self.seconds(handler)
        return None if seconds is None else check(seconds)


def check(seconds: object) -> float:
    return float(number(0, above=True, of="seconds").require("The limit", seconds, ValueError))


@contextmanager
def timed(handler: Application, seconds: float | None) -> Iterator[None]:
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, kill, [handler, seconds])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def timed_in_loop(handler: Application, seconds: float | None) -> Iterator[None]:
    if seconds is None:
        yield
        return
    endings: set[object] = set()

    def end() -> None:
        outcome = kill(handler, seconds)
        if inspect.iscoroutine(outcome):
            endings.add(asyncio.ensure_future(outcome))

    timer = asyncio.get_running_loop().call_later(seconds, end)
    try:
        yield
    finally:
        timer.cancel()


def kill(handler: Application, seconds: float) -> object:
    reason = f"Task '{handler.task.key}' has run for longer than its time limit of {seconds:g} s."
    try:
        return handler.kill(TimeLimitError(reason))
    except Exception:
        logger.exception("A handler's kill() raised. key=%s", printable(handler.task.key))
        return None
