"""Schedules that code declares: ``@scheduled`` over a handler or over one of Django's tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from django_perfectqueue.application import Registry
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.queue import Duration, database

from .terms import Terms

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


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
    type: str
    name: str
    data: object
    terms: Terms

    @property
    def payload(self) -> object:
        """The data of its tasks."""
        if self.data is None and getattr(self.target, "module_path", None):
            return {"args": [], "kwargs": {}}
        return self.data

    @property
    def using(self) -> str:
        """The alias of the database that it is for."""
        if getattr(self.target, "module_path", None):
            backend = self.target.get_backend()
            return str(getattr(backend, "using", "") or database())
        return database()

    @property
    def digest(self) -> str:
        """What changes when the declaration does."""
        said = json.dumps([self.type, self.payload, self.terms], sort_keys=True, default=str)
        return hashlib.sha256(said.encode()).hexdigest()


def type_of(target: Any) -> str:
    """
    Return the type of a handler, or the path of one of Django's tasks.

    Raise ConfigError where the target is neither.
    """
    if path := getattr(target, "module_path", None):
        return str(path)
    for pattern, made in Registry.routes.items():
        own = (made, getattr(made, "function", None), *getattr(made, "__bases__", ()))
        if isinstance(pattern, str) and target in [getattr(one, "__func__", one) for one in own]:
            return pattern
    raise ConfigError(
        f"@scheduled stands over {target!r}, which is no handler with a type and none of"
        " Django's tasks. Write it above @handler or @task."
    )


def terms_of(target: Any) -> Terms:
    """Return what the definition of one of Django's tasks says."""
    if not getattr(target, "module_path", None):
        return {}
    terms: Terms = {"queue": target.queue_name, "priority": target.priority}
    if isinstance(user := getattr(target, "user", None), str):
        terms["user"] = user
    if limits := getattr(target, "limits", ()):
        terms["limits"] = limits
    return terms


# The declarations of this process, by the names of the schedules.
declarations: dict[str, Declaration] = {}


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
        every_term: Any = {**terms_of(target), **terms, **timing.terms}
        type_ = type_of(target)
        made = Declaration(target, type_, name or type_, data, every_term)
        known = declarations.get(made.name)
        if known is not None and known.type != made.type:
            raise ConfigError(f"Two schedules are declared as '{made.name}'. Give one a name.")
        declarations[made.name] = made
        return target

    return declare
