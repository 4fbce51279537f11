"""
How long to wait before a task is tried again.

Waits are spread by chance, by default, so that what failed together is not tried again
together (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
Settings may import this module: it needs no app to be ready.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from asgiref.sync import iscoroutinefunction

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.checks import Check, number, span
from django_perfectqueue.lib.durations import seconds_of
from django_perfectqueue.lib.imports import imported

SPREAD = 0.25

Wait = timedelta | float | str
Answer = timedelta | float | None


class Backoff:
    """
    The wait before each further try, by how many attempts have ended in an error.

    ``jitter``, from 0 to 1, is the part of the wait by which it is spread to both sides.
    Waits are a timedelta, seconds or a span such as ``"5m30s"``. Raise ConfigError where
    one is none.
    """

    def __init__(self, *, jitter: float = SPREAD, longest: Wait | None = None) -> None:
        self.jitter: float = number(0, 1).require("jitter", jitter, ConfigError)
        self.longest = math.inf if longest is None else in_seconds("longest", longest)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def __call__(self, error: BaseException, result: Any) -> float:
        """Return the seconds to wait, as a backoff of Django's tasks does."""
        lease = getattr(result, "lease", None)
        errors = len(result.errors) if lease is None else lease.errors + 1
        return self.wait(errors)

    def wait(self, errors: int) -> float:
        """Return the seconds to wait after so many errors, 1 or more."""
        usual = min(self.usual(max(1, errors)), self.longest)
        spread = 1.0 + self.jitter * (2.0 * random.random() - 1.0)  # noqa: S311
        return min(self.longest, usual * spread)

    def usual(self, errors: int) -> float:
        """Return the wait before chance spreads it."""
        raise NotImplementedError


class Fixed(Backoff):
    """Waits for the same time before each try."""

    def __init__(self, wait: Wait, *, jitter: float = SPREAD) -> None:
        super().__init__(jitter=jitter)
        self.first = in_seconds("wait", wait)

    def usual(self, errors: int) -> float:
        return self.first


class Exponential(Backoff):
    """Waits for ``first``, and each time ``factor`` times as long, up to ``longest``."""

    def __init__(
        self,
        first: Wait = 15.0,
        longest: Wait = 3_600.0,
        factor: float = 2.0,
        *,
        jitter: float = SPREAD,
    ) -> None:
        super().__init__(jitter=jitter, longest=longest)
        self.first = in_seconds("first", first)
        self.factor = float(number(1).require("factor", factor, ConfigError))

    def usual(self, errors: int) -> float:
        try:
            return self.first * self.factor ** (errors - 1)
        except OverflowError:
            return self.longest


class Steps(Backoff):
    """Waits for each of these times in turn, and for the last of them from then on."""

    def __init__(self, *waits: Wait, jitter: float = SPREAD) -> None:
        super().__init__(jitter=jitter)
        if not waits:
            raise ConfigError("Steps needs at least one wait: Steps(1, 10, '5m').")
        self.waits = tuple(in_seconds("a step", wait) for wait in waits)

    def usual(self, errors: int) -> float:
        return self.waits[min(errors, len(self.waits)) - 1]


# Those that can be kept with a task: a row must not choose what a worker imports or calls.
KEPT = {kind.__name__: kind for kind in (Fixed, Exponential, Steps)}


def kept(value: object) -> list[object]:
    """
    Return a backoff as JSON holds it, from one of KEPT, a wait, or several as a list or with
    commas; raise ConfigError for anything else.
    """
    waits = [one.strip() for one in value.split(",")] if isinstance(value, str) else value
    if not isinstance(waits, Backoff):
        try:
            waits = Steps(*(waits if isinstance(waits, list | tuple) else [waits]))
        except ConfigError as error:
            raise ConfigError(f"backoff can't be {value!r}: {error}") from error
    name = type(waits).__name__
    if KEPT.get(name) is not type(waits):
        raise ConfigError(f"A backoff of one task must be one of {', '.join(KEPT)}, not {name}.")
    return [name, {key: given for key, given in vars(waits).items() if given != math.inf}]


def restored(name: str, values: dict[str, Any]) -> Backoff:
    """Return the backoff of which kept() has made a list of these two."""
    backoff: Backoff = object.__new__(KEPT[name])
    vars(backoff).update({"longest": math.inf, **values})
    return backoff


BackoffFunction = Callable[[BaseException, Any], Answer]


@functools.cache
def backoff_at(path: str) -> object:
    """
    Return the backoff that a path names.

    Raise ConfigError where that is none.
    """
    return BACKOFF.require(repr(path), imported(path), ConfigError)


BACKOFF = Check(
    "a function of the error and the task, or an instance such as Exponential(5)",
    lambda value: (
        callable(value) and not isinstance(value, type) and not iscoroutinefunction(value)
    ),
)


def in_seconds(name: str, wait: Wait) -> float:
    return seconds_of(span().require(name, wait, ConfigError)) or 0.0
