"""Schedules that code declares: ``@scheduled`` over a handler or over one of Django's tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from django_perfectqueue.application import Registry
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.queue import Duration

from .terms import Terms

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Timing:
    """When ``@scheduled`` submits: what cron() and every() return."""

    terms: Terms


def cron(expression: str, timezone: str = "") -> Timing:
    """Return the timing of a cron expression, read in a time zone, by default TIME_ZONE."""
    return Timing({"cron": expression, "timezone": timezone})


def every(interval: Duration) -> Timing:
    """Return the timing of an interval: a timedelta, seconds, or a span such as "15m"."""
    return Timing({"every": interval})


@dataclass(frozen=True, slots=True)
class Declaration:
    """What code says of one schedule."""

    target: Any
    name: str
    data: object
    terms: Terms

    @property
    def type(self) -> str:
        """
        The type of its tasks: that of the handler, or the path of Django's task.

        Raise ConfigError where the target is neither.
        """
        if path := getattr(self.target, "module_path", None):
            return str(path)
        for pattern, made in Registry.routes.items():
            own = (made, getattr(made, "function", None), *made.__bases__)
            if isinstance(pattern, str) and self.target in own:
                return pattern
        raise ConfigError(
            f"@scheduled stands over {self.target!r}, which is no handler with a type and none of"
            " Django's tasks. Write it above @handler or @task."
        )

    @property
    def payload(self) -> object:
        """The data of its tasks."""
        if self.data is None and getattr(self.target, "module_path", None):
            return {"args": [], "kwargs": {}}
        return self.data

    @property
    def digest(self) -> str:
        """What changes when the declaration does."""
        said = json.dumps([self.type, self.payload, self.terms], sort_keys=True, default=str)
        return hashlib.sha256(said.encode()).hexdigest()


declarations: dict[str, Declaration] = {}
"""The declarations of this process, by the names of the schedules."""


def scheduled(
    timing: Timing, *, name: str = "", data: object = None, **terms: Unpack[Terms]
) -> Callable[[T], T]:
    """
    Declare a schedule for a handler, above ``@handler``, or for one of Django's, above ``@task``.

    Workers store it when they start. It is called ``name``, or else like the type of the task;
    ``data`` is what its tasks get, for one of Django's ``{"args": [...], "kwargs": {...}}``.
    The terms are those of Schedules.put(). Raise ConfigError for two of one name.
    """
    if not isinstance(timing, Timing):
        raise ConfigError("@scheduled needs cron(...) or every(...) first.")

    def declare(target: T) -> T:
        made = Declaration(target, name, data, {**terms, **timing.terms})
        made = Declaration(target, name or made.type, data, made.terms)
        known = declarations.get(made.name)
        if known is not None and known.type != made.type:
            raise ConfigError(f"Two schedules are declared as '{made.name}'. Give one a name.")
        declarations[made.name] = made
        return target

    return declare
