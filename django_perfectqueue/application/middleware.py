"""What stands around the performing of tasks: for all, or for some handlers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.signals import setting_changed
from django.db import transaction

from django_perfectqueue.backoff import Backoff, Wait
from django_perfectqueue.conf import SETTING, cached, options
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    ConfigError,
    PreemptedError,
    ProcessStopError,
    TimeLimitError,
)
from django_perfectqueue.lib.checks import number
from django_perfectqueue.lib.imports import imported, path_of
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.lib.processes import resident
from django_perfectqueue.verdicts import Verdict

from .error_policy import failure, most_attempts, wait_by

if TYPE_CHECKING:
    from .base import Application


__all__ = ["MemoryLimit", "ReportErrors", "RetryOn", "TimeLimit"]


# Which middleware stands around a handler, and in which order.


Perform = Callable[[], object]
APerform = Callable[[], Awaitable[object]]
Layer = Callable[[Any, Perform], Any]
Around = Callable[[Any], Any]
Given = Layer | type | str | object

FOR_ALL = f"{SETTING}['MIDDLEWARE']"
FUNCTIONS, COROUTINES = "around_perform", "aaround_perform"


class Arounds(dict[type, Around]):
    """
    By the class of a handler, the function that runs one within its middleware.

    A lookup raises ConfigError for an object that is no middleware, or not for such handlers.
    """

    def __missing__(self, kind: type[Application]) -> Around:
        layers = [layer_for(kind, one) for one in middleware_of(kind)]
        innermost: Around = methodcaller(kind._bare_method())
        return self.setdefault(kind, functools.reduce(wrapped, reversed(layers), innermost))


arounds = Arounds()
# Made anew where a test changes a setting.
setting_changed.connect(lambda **kwargs: arounds.clear(), weak=False)


def wrapped(inner: Around, layer: Layer) -> Around:
    return lambda handler: layer(handler, functools.partial(performed, inner, handler))


def performed(inner: Around, handler: Application) -> object:
    """Do what is within a layer; what is done there by an atomic handler goes with its errors."""
    if not handler.atomic:
        return inner(handler)
    with transaction.atomic(using=handler.task.lease.using):
        return inner(handler)


def middleware_of(kind: type[Application]) -> list[object]:
    """Return each once, the outermost first: that for all, of the base classes, its own."""
    found: list[object] = []
    for one in (*for_all(), *own(kind)):
        if not any(one is other for other in found):
            found.append(one)
    return found


@cached
def for_all() -> tuple[object, ...]:
    """
    Return the middleware of all handlers.

    Raise ConfigError when one can't be imported, or is no middleware.
    """
    return tuple(build_middleware(path, FOR_ALL) for path in options().MIDDLEWARE)


def own(kind: type[Application]) -> Iterator[object]:
    for base in reversed(kind.__mro__):
        given = vars(base).get("middleware", ())
        place = f"{base.__qualname__}.middleware"
        if not isinstance(given, list | tuple):
            raise ConfigError(f"{place} must be a list, not {given!r}.")
        yield from (build_middleware(one, place) for one in given)


def build_middleware(given: Given, place: str) -> object:
    """Return the middleware that a function, an object, a class or a dotted path stands for."""
    target: object = imported(given, place) if isinstance(given, str) else given
    if isinstance(target, type):
        kind = target
        try:
            target = only_one(kind)
        except TypeError as error:
            raise ConfigError(
                f"{place} has the class {kind.__qualname__}, which can't be made without"
                f" arguments: {error}. Make an object of it, and name that."
            ) from error
    if not any(halves(target)):
        raise ConfigError(
            f"{place} has {given!r}, which is no middleware: neither a function of the handler and"
            f" perform, nor anything with {FUNCTIONS}() or {COROUTINES}()."
        )
    return target


@functools.cache
def only_one(kind: type) -> object:
    return kind()


def halves(middleware: object) -> tuple[Layer | None, Layer | None]:
    """Return what it has for handlers that are functions, and for those that are coroutines."""
    around, aaround = (getattr(middleware, name, None) for name in (FUNCTIONS, COROUTINES))
    if around is None and aaround is None and callable(middleware):
        around = middleware
    if around is not None and is_async(around):
        around, aaround = None, aaround or around
    return around, aaround


def layer_for(kind: type[Application], middleware: object) -> Layer:
    around, aaround = halves(middleware)
    if (layer := aaround if kind.is_async else around) is not None:
        return layer
    named = middleware if hasattr(middleware, "__qualname__") else type(middleware)
    what, needed, other = (
        ("a coroutine", f"async def {COROUTINES}", "functions")
        if kind.is_async
        else ("a function", f"def {FUNCTIONS}", "coroutines")
    )
    raise ConfigError(
        f"The handler {kind.__qualname__} is {what}, but its middleware {path_of(named)} is"
        f" only for {other}: write it as a class with '{needed}(self, handler, perform)' as well."
    )


# Middleware for the errors that handlers raise: report them, or try again after some.


Facts = dict[str, str | int]

# What a handler may raise that is no error of it.
NO_ERRORS = (CancelRequestedError, PreemptedError, ProcessStopError, Verdict)

logger = logging.getLogger("django_perfectqueue.errors")
runner_logger = logging.getLogger("django_perfectqueue.runner")


class OnErrors:
    """Calls ``handle()`` with each error of a handler, in a thread where that is a coroutine."""

    def around_perform(self, handler: Application, perform: Perform) -> object:
        try:
            return perform()
        except Exception as error:
            if isinstance(error, NO_ERRORS) or not self.handle(handler, error):
                raise
            return None

    async def aaround_perform(self, handler: Application, perform: APerform) -> object:
        try:
            return await perform()
        except Exception as error:
            if isinstance(error, NO_ERRORS) or not await sync_to_async(self.handle)(handler, error):
                raise
            return None

    def handle(self, handler: Application, error: Exception) -> bool:
        """Return whether the error goes no further."""
        raise NotImplementedError


class RetryOn(OnErrors):
    """
    Has a task tried again after these errors, and leaves all others to the decider.

    What is no error it lets through, even where it is for every Exception: a verdict, say,
    or that the task is to stop.

    ``attempts`` is how many may end in an error, whichever it is; None is what the handler
    says. ``wait`` is a wait or a backoff, as in ``retry_on``; None is the handler's. What the
    submit of the task says goes before both. After the last attempt the error goes up.
    """

    def __init__(
        self,
        *errors: type[Exception],
        attempts: int | None = None,
        wait: Backoff | Wait | None = None,
    ) -> None:
        if not errors:
            raise TypeError("RetryOn needs an exception: RetryOn(ConnectionError).")
        self.errors = errors
        self.attempts = attempts
        self.backoff = wait

    def handle(self, handler: Application, error: Exception) -> bool:
        task = handler.task
        most = most_attempts(task, handler, asked=True, usual=self.attempts)
        if not isinstance(error, self.errors) or task.settled or task.lease.errors + 1 >= most:
            return False
        wait = wait_by(self.backoff, task, handler, error)
        if wait is None:
            return False
        task.retry(wait, why=failure(error))
        text, name = as_text(facts_of(handler)), type(error).__qualname__
        runner_logger.warning(
            "A task is tried again after an error. %s seconds=%.1f error=%s", text, wait, name
        )
        return True


class ReportErrors(OnErrors):
    """
    Calls a reporter with each error that a handler raises, and lets the error go on.

    The reporter gets the error and a dict of facts about the task: queue, key, type, user,
    attempt, handler and traceback; never its data, and what is sensitive in them is blacked
    out of the traceback. What it raises is logged, and does not mask the error.
    """

    def __init__(self, report: Callable[[Exception, Facts], object]) -> None:
        self.report = report

    def handle(self, handler: Application, error: Exception) -> bool:
        text = handler.task.redacted("".join(traceback.format_exception(error)))
        facts = {**facts_of(handler), "traceback": text}
        try:
            self.report(error, facts)
        except Exception:
            logger.exception("A reporter of errors raised. %s", as_text(facts))
        return False


def facts_of(handler: Application) -> Facts:
    lease = handler.task.lease
    names = {name: getattr(lease, name) for name in ("queue", "key", "type", "user")}
    return {**names, "attempt": lease.tries, "handler": path_of(type(handler))}


def as_text(facts: Facts) -> str:
    return " ".join(
        f"{name}={printable(str(value))}" for name, value in facts.items() if name != "traceback"
    )


# Middleware that limits the time and the memory of handlers.


BYTES_PER_MIB = 1_048_576
MIB = number(0, above=True, of="MiB")
SECONDS = number(0, above=True, of="seconds")

processor_logger = logging.getLogger("django_perfectqueue.processor")

Seconds = Callable[["Application"], float | None]

# Set to have this process replaced by a new one once its running tasks have ended.
wanted = threading.Event()


class Middleware:
    """Puts a context manager, ``around()``, around functions and coroutines."""

    def around(self, handler: Application) -> AbstractContextManager[None]:
        raise NotImplementedError

    def around_perform(self, handler: Application, perform: Perform) -> object:
        with self.around(handler):
            return perform()

    async def aaround_perform(self, handler: Application, perform: APerform) -> object:
        with self.around(handler):
            return await perform()


class TimeLimit(Middleware):
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
        task = handler.task
        reason = TimeLimitError(
            f"Task '{task.key}' has run for longer than its time limit of {seconds:g} s."
        )
        # The loop itself does not keep a task alive that nobody refers to.
        endings: list[object] = []

        def end() -> None:
            try:
                if inspect.iscoroutine(outcome := handler.kill(reason)):
                    endings.append(asyncio.ensure_future(outcome))
            except Exception:
                runner_logger.exception("A handler's kill() raised. key=%s", printable(task.key))

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


class MemoryLimit(Middleware):
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
                wanted.set()


# Distinguish coroutine functions from other callables.


def is_async(function: Callable[..., object]) -> bool:
    """Return whether a function, a partial of one or a callable object returns a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)
