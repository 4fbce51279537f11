"""
Schedules that code declares, by ``@scheduled`` over a handler or over one of Django's tasks, and
their rows, which are brought in line with that.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import IntegrityError

from django_perfectqueue import store
from django_perfectqueue.application import Registry
from django_perfectqueue.exceptions import ConfigError, InvalidScheduleError, PerfectQueueError
from django_perfectqueue.models import Schedule, Worker
from django_perfectqueue.queue import Duration, database

from .schedules import edited, whole
from .terms import Terms, apply, checked_payload

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
        f"@scheduled is applied to {target!r}, which is no handler with a type and none of"
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


# Bring the rows of schedules in line with what is declared.


logger = logging.getLogger("django_perfectqueue.schedules")

DECLARED = (Schedule.Origin.CODE, Schedule.Origin.GONE)


def declared_for(using: str) -> dict[str, Declaration]:
    """Return what this process declares for a database, by name."""
    return {name: one for name, one in declarations.items() if one.using == using}


def sync(own: Mapping[str, Declaration], *, using: str, worker: int, first: bool) -> bool:
    """
    Store declarations, when a worker begins, and retire those that no live worker has.

    A person's pause, and a person's change, stand until the declaration itself changes. Where
    a younger worker declares the same name, as during a release, its word is the one that
    counts. Return whether there are declared rows, which have to be looked at again.
    """
    rows = {row.name: row for row in Schedule.objects.using(using).filter(origin__in=DECLARED)}
    if not (own or rows):
        return False
    workers = list(Worker.objects.using(using).seen(store.records.clock(using=using)))
    for name, declaration in own.items():
        row = rows.get(name)
        # Another worker may have retired it while this one was not seen for a while.
        gone = row is not None and row.origin == Schedule.Origin.GONE
        differs = gone or (first and (row is None or row.declared_in != declaration.digest))
        if differs and not is_decided_by_younger(name, worker, workers):
            store_declaration(declaration, using=using)
    live = set(own).union(*(other.schedules for other in workers))
    retire((row for name, row in rows.items() if name not in live), using=using)
    return True


def is_decided_by_younger(name: str, worker: int, workers: Iterable[Worker]) -> bool:
    born = {other.pk: other.started_at for other in workers}
    return worker in born and any(
        other.started_at > born[worker] for other in workers if name in other.schedules
    )


def store_declaration(declaration: Declaration, *, using: str) -> None:
    """Store one; log why where that fails, so that it holds up no other."""
    try:
        with edited(declaration.name, None, using=using) as (row, moment):
            set_declared(row, declaration, moment)
    except IntegrityError:
        return  # Another worker has just stored it.
    except PerfectQueueError as error:
        logger.error("A schedule is not stored. schedule=%s error=%s", declaration.name, error)


def set_declared(row: Schedule, declaration: Declaration, now: datetime) -> None:
    """Make a row what is declared; raise InvalidScheduleError."""
    if row.pk is not None and row.origin == Schedule.Origin.ROW:
        raise InvalidScheduleError("A person has stored one of this name: that one stays.")
    row.origin = Schedule.Origin.CODE
    if row.declared_in != declaration.digest:
        row.type = declaration.type
        row.payload = checked_payload(declaration.payload, declaration.type)
        apply(row, {**whole(), "context": {}, **declaration.terms}, now)
        row.declared_in = declaration.digest


def retire(rows: Iterable[Schedule], *, using: str) -> None:
    for row in rows:
        if row.origin == Schedule.Origin.CODE:
            Schedule.objects.using(using).filter(pk=row.pk, declared_in=row.declared_in).update(
                origin=Schedule.Origin.GONE, next_at=None, due_at=None
            )
            logger.info("No worker declares this schedule any more. schedule=%s", row.name)
