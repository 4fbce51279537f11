"""What is wrong with TASKS, foreign keys to tasks, and declared schedules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core import checks
from django.core.checks import CheckMessage
from django.db import Error, connections
from django.utils import timezone
from django.utils.module_loading import import_string

from django_perfectqueue import compat
from django_perfectqueue.application import autodiscover, dispatch_at
from django_perfectqueue.backoff import BACKOFF, backoff_at
from django_perfectqueue.backoff.error_rules import CHECKS
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import ConfigError, PerfectQueueError
from django_perfectqueue.fairness.declared import declare_noted, declared, lacking
from django_perfectqueue.lib.checks import Check, choice, nearest
from django_perfectqueue.models import Batch, Schedule, Task, Worker
from django_perfectqueue.schedules.declared import declarations
from django_perfectqueue.schedules.schedules import whole
from django_perfectqueue.schedules.terms import apply, checked_payload

from .messages import SCHEDULES, TAG, check, error, warning

if TYPE_CHECKING:
    from django_perfectqueue.backend import PerfectQueueBackend

DELETED = (Task, Batch, Schedule, Worker)


@check(TAG)
def check_backends(alias: str) -> Iterator[CheckMessage]:
    """Check the backends of this package in TASKS; Django 6 itself asks no backend."""
    if not compat.HAS_TASKS:
        return
    from django_perfectqueue.backend.base import configured

    for name in compat.task_backends:
        try:
            compat.task_backends[name]
        except compat.InvalidTaskBackend as trouble:
            yield error(
                35,
                f"TASKS['{name}'] can't be used: {trouble}",
                "Set its BACKEND to 'django_perfectqueue.backend.PerfectQueueBackend', or to the"
                " path of another backend.",
            )
    for backend in configured():
        yield from problems(backend)


KEYS = ("BACKEND", "QUEUES", "OPTIONS", "MAX_ATTEMPTS", "BACKOFF", "ENQUEUE_ON_COMMIT")


def problems(backend: PerfectQueueBackend) -> Iterator[CheckMessage]:
    """Yield what is wrong with one backend, whose app is installed."""
    place = f"TASKS['{backend.alias}']"
    if compat.APP and not apps.is_installed(compat.APP):
        yield error(
            31,
            f"{place} needs the app '{compat.APP}', which is not installed.",
            f"Add '{compat.APP}' to INSTALLED_APPS.",
        )
    for name in backend.params:
        if name not in KEYS:
            yield unknown(place, name, KEYS)
    for name, value in backend.options.items():
        where = f"{place}['OPTIONS']"
        if name not in RULES:
            yield unknown(where, name, sorted(RULES))
        elif problem := RULES[name](value):
            yield error(34, f"{where}['{name}'] {problem}", "Correct it, or remove it.")
    for name in backend.queue_names:
        if not isinstance(name, str) or not 0 < len(name) <= 100:
            yield error(
                32,
                f"{place}['QUEUES'] has {name!r}, which can't be the name of a queue.",
                "Name it by a text of 1 to 100 characters.",
            )


def unknown(place: str, name: object, names: Sequence[str]) -> CheckMessage:
    return error(
        33, f"{place} has no '{name}'.{nearest(str(name), names)}", f"There is {', '.join(names)}."
    )


def backoff_problem(value: object) -> str:
    if value is None:
        return ""
    try:
        return BACKOFF.problem(backoff_at(value) if isinstance(value, str) else value)
    except ConfigError as trouble:
        return f"can't be used: {trouble}"


def id_function_problem(value: object) -> str:
    try:
        made = import_string(value) if isinstance(value, str) else value
    except ImportError as trouble:
        return f"can't be used: {trouble}."
    return Check("a function or a path to one", callable).or_none().problem(made)


def modules_problem(value: object) -> str:
    if not isinstance(value, list | tuple):
        return f"must be a list of modules, not {value!r}."
    missing = [name for name in value if not is_there(name)]
    return f"names a module that is not there, '{missing[0]}'." if missing else ""


def is_there(name: object) -> bool:
    try:
        return isinstance(name, str) and find_spec(name) is not None
    except (ImportError, ValueError):
        return False


RULES: dict[str, Callable[[Any], str]] = {
    "backoff": backoff_problem,
    "database": lambda value: choice(*connections).or_none().problem(value),
    "id_function": id_function_problem,
    "max_attempts": CHECKS["max_attempts"].or_none().problem,
    "modules": modules_problem,
    "time_limit": CHECKS["time_limit"].or_none().problem,
}


@check("models")
def check_references(alias: str) -> Iterator[CheckMessage]:
    """Check that no foreign key keeps workers from deleting what is over."""
    for model in apps.get_models():
        for field in model._meta.local_fields:
            if getattr(field, "db_constraint", False) and field.related_model in DELETED:
                yield warning(
                    22,
                    f"{field} is a foreign key with a constraint to rows that workers delete:"
                    " those that it refers to stay for ever.",
                    "Give it db_constraint=False and on_delete=DO_NOTHING, or delete or clear its"
                    " rows before RETENTION deletes them.",
                )


@check(checks.Tags.database)
def check_limits(alias: str) -> Iterator[CheckMessage]:
    """Check that limits exist which handlers and tasks name without saying what they are."""
    with contextlib.suppress(Exception):
        for _handler in dispatch_at(options().DISPATCH).handlers():
            pass
    for problem in declare_noted():
        yield error(52, str(problem), "Correct the limits of its @task.")
    try:
        missing = lacking(using=alias)
    except Error:
        return  # Before the tables are made.
    for name in missing:
        yield warning(
            51,
            f"The limit '{name}', which {declared[name][0]} names, does not"
            " exist, and limits nothing.",
            f"Say what it is where it is named, as in limits={{'{name}': '100/min'}}, or set it by"
            f" pq_limit set name:{name}.",
        )


@check(SCHEDULES)
def check_schedules(alias: str) -> Iterator[CheckMessage]:
    """
    Check that declared schedules can be stored: their data, zones, cron expressions and terms.

    It imports the modules of tasks, so of the commands only pq_worker runs it, and reports one that
    can't be imported.
    """
    with contextlib.suppress(Exception):
        autodiscover()
    for declaration in declarations.values():
        row = Schedule(name=declaration.name)
        try:
            checked_payload(declaration.payload, declaration.type)
            apply(row, {**whole(), **declaration.terms}, timezone.now())
        except PerfectQueueError as problem:
            yield error(
                50,
                f"The schedule '{declaration.name}' can't be stored: {problem}",
                f"Correct the @scheduled over the handler of '{declaration.type}'.",
            )
