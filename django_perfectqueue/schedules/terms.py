"""What may be said of a schedule: checked, and as its row keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from django_perfectqueue import compat
from django_perfectqueue.application import Dispatch, dispatch_at
from django_perfectqueue.bulk import TYPE as BULK
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import (
    ConfigError,
    InvalidScheduleError,
    InvalidTaskError,
    PayloadError,
    UnknownTypeError,
)
from django_perfectqueue.inspection.why_waiting import may_know, workers_serving
from django_perfectqueue.lib.checks import LARGEST, Check, choice, nearest, span, whole
from django_perfectqueue.lib.durations import seconds_of
from django_perfectqueue.lib.imports import what_and_where
from django_perfectqueue.models import NAME_LENGTH, Schedule
from django_perfectqueue.models.schedule import OPTIONS
from django_perfectqueue.payload import inputs
from django_perfectqueue.payload.context import provided
from django_perfectqueue.payload.inputs import Duration, When
from django_perfectqueue.payload.limit_names import checked_templates
from django_perfectqueue.queue import TaskTerms
from django_perfectqueue.queue.submission import CHECKS as OF_SUBMITS
from django_perfectqueue.store.arithmetic.ticks import zone_of
from django_perfectqueue.store.schedules import timing_of

if TYPE_CHECKING:
    from django_perfectqueue.compat import AnyTask

A_DICT = Check("a dict", lambda value: isinstance(value, Mapping))


class Terms(TaskTerms, total=False):
    """
    The terms of a schedule; what is not given has its default.

    ``context`` is what its tasks take along; without it what is captured where it is put, and
    nothing for what ``@scheduled`` declares. A change keeps it.
    """

    #: Five fields, or six with seconds first, or ``@yearly``, ``@annually``, ``@monthly``,
    #: ``@weekly``, ``@daily``, ``@midnight`` or ``@hourly``.
    cron: str
    #: A timedelta, seconds, or a span such as ``"15m"``; at least a second.
    every: Duration
    #: The IANA name of a time zone for ``cron``; by default TIME_ZONE.
    timezone: str
    #: The queue of its tasks.
    queue: str
    #: A task that has not started by then expires.
    expires_after: Duration | None
    #: No tick is earlier; intervals count from it.
    starts_at: When | None
    #: No tick is later.
    ends_at: When | None
    #: How many tasks it submits; None is any number.
    remaining: int | None
    #: How long after its tick a task is submitted; by default 0.
    delay: Duration
    #: Up to so much more, the same for the same tick; by default 0.
    jitter: Duration
    #: What becomes of a tick while the task before has yet to end; by default ``"skip"``.
    overlap: str
    #: How many missed ticks are made up beside the latest; by default 0, None is all, 1,000 in one
    #: look.
    catch_up: int | None
    #: A tick that is later is dropped, and counted in ``skipped_late`` as missed ones are.
    deadline: Duration | None
    #: So many failed tasks in a row pause it, before the next tick; None is never.
    pause_after: int | None


# Of these a change sets the cursor to the first tick after now.
TIMING = ("cron", "every", "timezone", "starts_at", "ends_at")


@contextmanager
def as_invalid_schedule() -> Iterator[None]:
    """Raise InvalidScheduleError for what a submit would refuse."""
    try:
        yield
    except (InvalidTaskError, PayloadError) as error:
        raise InvalidScheduleError(str(error)) from error


@as_invalid_schedule()
def apply(row: Schedule, terms: Mapping[str, object], now: datetime) -> None:
    """
    Set the terms that are given; the row is not saved.

    Raise InvalidScheduleError, which names the nearest right word.
    """
    for name in terms:
        if name not in ALL_CHECKS:
            raise InvalidScheduleError(f"A schedule has no '{name}'.{nearest(name, ALL_CHECKS)}")
    if terms.get("cron") and terms.get("every"):
        raise InvalidScheduleError("Give a cron expression or an interval, not both.")
    if terms.get("cron"):
        row.every = None
    elif terms.get("every"):
        row.cron = ""
    for name, value in terms.items():
        setattr(row, name, ALL_CHECKS[name](name, value, now))
    if not (row.cron or row.every):
        raise InvalidScheduleError("Give a cron expression or an interval: every='15m'.")
    if row.starts_at and row.ends_at and row.ends_at < row.starts_at:
        raise InvalidScheduleError(f"It ends at {row.ends_at}, before it starts.")
    if row.cron and timing_of(row).first_after(now) is None and row.ends_at is None:
        raise InvalidScheduleError(f"The cron expression '{row.cron}' never comes.")


def context_(name: str, given: Any, now: datetime) -> str | None:
    """Return what tasks take along of the surroundings in which their schedule is stored."""
    A_DICT.or_none().require(name, given, InvalidScheduleError)
    values = provided(given)
    return inputs.carried(values) if values else None


def cron_(name: str, value: object, now: datetime) -> str:
    if not value:
        return ""
    text = " ".join(inputs.checked("cron expression", value, 200).split())
    return text.lower() if text.startswith("@") else text


def zone(name: str, value: object, now: datetime) -> str:
    if value:
        zone_of(inputs.checked("time zone", str(value), 64))
    return str(value or "")


def at(name: str, value: When | None, now: datetime) -> datetime | None:
    return cast("datetime | None", inputs.moment(name, value, now))


def given(check: Check) -> Callable[[str, Any, datetime], Any]:
    """Return a check of a term that is stored as it is given."""
    return lambda name, value, now: check.require(name, value, InvalidScheduleError)


def of_submit(name: str, value: Any, now: datetime) -> object:
    """Return an option of its tasks that has no column, as it is stored; None is none."""
    if not value and value != 0:
        return None
    found = OF_SUBMITS[name](value)
    return list(found) if isinstance(found, tuple) else found


def seconds(check: Check) -> Callable[[str, Duration | None, datetime], float | None]:
    """Return a check of a term that is stored in seconds."""
    return lambda name, value, now: (
        None if value is None else seconds_of(check.require(name, value, InvalidScheduleError))
    )


SPAN, WAIT = seconds(span(above=True)), seconds(span())
CHECKS: dict[str, Callable[[str, Any, datetime], object]] = {
    "cron": cron_,
    "every": seconds(span(least=1)),
    "timezone": zone,
    "queue": lambda name, value, now: inputs.checked(name, value, inputs.QUEUE_LENGTH),
    "user": lambda name, value, now: inputs.checked_user(value),
    "priority": lambda name, value, now: inputs.checked_priority(value),
    "limits": lambda name, value, now: ",".join(checked_templates(value)),
    "time_limit": SPAN,
    **dict.fromkeys(OPTIONS, of_submit),
    "expires_after": SPAN,
    "starts_at": at,
    "ends_at": at,
    "remaining": given(whole(1, LARGEST).or_none()),
    **dict.fromkeys(("delay", "jitter"), lambda name, value, now: WAIT(name, value, now) or 0.0),
    "overlap": given(choice(*Schedule.Overlap.values)),
    "catch_up": given(whole(0, LARGEST).or_none()),
    "deadline": SPAN,
    "pause_after": given(whole(1, LARGEST).or_none()),
}
# With that of what people do not write.
ALL_CHECKS = {**CHECKS, "context": context_}


@as_invalid_schedule()
def checked_name(name: object) -> str:
    return inputs.checked("name of a schedule", name, NAME_LENGTH)


@as_invalid_schedule()
def checked_payload(data: object, type_: str) -> str:
    """
    Return data as the tasks of this type have them.

    Raise InvalidScheduleError where JSON can't hold them, or one of Django's tasks can't be
    called with them.
    """
    task = django_task(type_)
    return inputs.encoded(checked_call(task, data) if task else data)


def django_task(type_: str) -> AnyTask | None:
    """Return the one of Django's tasks that is of this type, or None."""
    if not compat.HAS_TASKS:
        return None
    from django_perfectqueue.backend.base import definition_of

    return definition_of(type_)


def checked_call(task: AnyTask, data: object) -> object:
    """
    Return the arguments of one of Django's tasks; none are given where there are no data.

    Raise InvalidTaskError where it can't be called with them, and PayloadError where they are none.
    """
    from django_perfectqueue.backend.base import arguments_of
    from django_perfectqueue.backend.definition import StoredCall

    found = {"args": [], "kwargs": {}} if data is None else data
    try:
        arguments_of(StoredCall.of(found), task)
    except compat.InvalidTask as error:
        raise InvalidTaskError(
            f"{task.module_path}() can't be called with these data: {error}."
        ) from error
    return found


@as_invalid_schedule()
def checked_type(type_: object, *, using: str) -> str:
    """
    Return a type.

    Raise InvalidScheduleError, with the nearest type, when no handler here and no worker of
    this database knows it.
    """
    name = inputs.checked("type", type_, inputs.KEY_LENGTH)
    known = known_types(using=using)
    if name == BULK:
        raise InvalidScheduleError(f"Tasks of type '{name}' do what a person asks for, once.")
    if name in known or dispatch_here().knows(name):
        return name
    if any(may_know(worker.routes_text, name) for worker in workers_serving(using=using)):
        return name
    raise InvalidScheduleError(f"No handler runs tasks of type '{name}'.{nearest(name, known)}")


def dispatch_here() -> type[Dispatch]:
    return dispatch_at(options().DISPATCH)


def signals_of(type_: str) -> Mapping[str, Any]:
    """
    Return the signals that the handler of a type declares; none where there is no handler here.

    Raise ConfigError where it, or the dispatch, can't be imported.
    """
    try:
        if task := django_task(type_):
            return getattr(task, "signals", None) or {}
        return dispatch_here().handler_for(type_).signals
    except UnknownTypeError:
        return {}
    except ConfigError:
        raise
    except Exception as error:
        # Importing a module may raise anything.
        what = what_and_where(error)
        raise ConfigError(f"The handler of '{type_}' can't be imported: {what}") from error


def known_types(*, using: str) -> set[str]:
    """Return the types that handlers here, Django's tasks and live workers name, for people."""
    found = {route for route in dispatch_here().load() if isinstance(route, str)}
    if compat.HAS_TASKS:
        from django_perfectqueue.backend import base, definition

        base.discover()
        found |= definition.definitions.keys()
    for worker in workers_serving(using=using):
        found |= {*worker.routes["types"]} if worker.routes is not None else set()
    return found - {BULK}
