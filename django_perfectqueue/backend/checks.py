"""What can be found wrong with TASKS, where it names this package's backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core import checks
from django.core.checks import CheckMessage
from django.db import connections
from django.utils.module_loading import import_string

from django_perfectqueue.backoff import BACKOFF, backoff_at
from django_perfectqueue.backoff.error_rules import CHECKS
from django_perfectqueue.compat import APP
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.checks import Check, choice, nearest

if TYPE_CHECKING:
    from .base import PerfectQueueBackend

NAME = "django_perfectqueue"
KEYS = ("BACKEND", "QUEUES", "OPTIONS", "MAX_ATTEMPTS", "BACKOFF", "ENQUEUE_ON_COMMIT")


def problems(backend: PerfectQueueBackend) -> Iterator[CheckMessage]:
    """Yield what is wrong with one backend, whose app is installed."""
    place = f"TASKS['{backend.alias}']"
    if APP and not apps.is_installed(APP):
        yield error(
            31,
            f"{place} needs the app '{APP}', which is not installed.",
            f"Add '{APP}' to INSTALLED_APPS.",
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


def not_installed(alias: str) -> CheckMessage:
    return error(
        30,
        f"TASKS['{alias}'] keeps its tasks in tables that are not there: '{NAME}' is not"
        " installed.",
        f"Add '{NAME}' to INSTALLED_APPS, and migrate.",
    )


def is_installed() -> bool:
    """Return whether the app is installed; True until Django has loaded the apps."""
    return not apps.apps_ready or apps.is_installed(NAME)


def unknown(place: str, name: object, names: Sequence[str]) -> CheckMessage:
    return error(
        33, f"{place} has no '{name}'.{nearest(str(name), names)}", f"There is {', '.join(names)}."
    )


def backoff(value: object) -> str:
    if value is None:
        return ""
    try:
        return BACKOFF.problem(backoff_at(value) if isinstance(value, str) else value)
    except ConfigError as trouble:
        return f"can't be used: {trouble}"


def id_function(value: object) -> str:
    try:
        made = import_string(value) if isinstance(value, str) else value
    except ImportError as trouble:
        return f"can't be used: {trouble}."
    return Check("a function or a path to one", callable).or_none().problem(made)


def modules(value: object) -> str:
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
    "backoff": backoff,
    "database": lambda value: choice(*connections).or_none().problem(value),
    "id_function": id_function,
    "max_attempts": CHECKS["max_attempts"].or_none().problem,
    "modules": modules,
    "time_limit": CHECKS["time_limit"].or_none().problem,
}


def error(number: int, message: str, hint: str) -> CheckMessage:
    return checks.Error(message, hint=hint, id=f"perfectqueue.E{number:03}")
