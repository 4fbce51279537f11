"""Find the handlers: those of a dispatch or of all apps, and Django's tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import Error

from django_perfectqueue.application import Dispatch, Registry, dispatch_at
from django_perfectqueue.application.dispatch import in_words
from django_perfectqueue.compat import HAS_TASKS
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import ConfigError, PerfectQueueError
from django_perfectqueue.lib.imports import what_and_where

REFUSED = tuple(
    f"{name}() got an unexpected keyword argument" for name in ("Task.__init__", "task")
)
T = TypeVar("T")


def types_of(dispatch: type[Dispatch]) -> list[str]:
    """Return the types of a dispatch, those of Django's tasks last."""
    routes = dispatch.load()
    return [in_words(route) for route in sorted(routes, key=lambda r: routes[r].is_djangos)]


def found(path: str | None) -> type[Dispatch]:
    """Return what dispatch_at() does, with advice where a module of tasks can't be imported."""
    return imported(lambda: dispatch_at(path))


def workers_dispatch(using: str) -> type[Dispatch]:
    """Return what pq_worker routes by where its line names no dispatch."""
    return with_django_tasks(found(options().DISPATCH), using)[0]


def with_django_tasks(dispatch: type[Dispatch], using: str) -> tuple[type[Dispatch], list[str]]:
    """
    Return a dispatch that also has Django's tasks if TASKS names a PerfectQueueBackend, and
    the queues of such backends in this database.
    """
    if not HAS_TASKS:
        return dispatch, []
    from django_perfectqueue.backend import base, handler

    backends = list(base.configured())
    if not backends:
        return dispatch, []
    imported(base.discover)
    here = [backend for backend in backends if backend.using == using]
    return handler.with_django_tasks(dispatch), [
        name for backend in here for name in backend.queue_names
    ]


def imported(discover: Callable[[], T]) -> T:
    """Import task modules; raise ConfigError with file and line if one fails."""
    try:
        return discover()
    except (PerfectQueueError, ImproperlyConfigured, Error):
        raise
    except Exception as error:
        raise ConfigError(
            f"A tasks module can't be imported: {what_and_where(error)}.{advice_on(error)}"
        ) from error


def advice_on(error: Exception) -> str:
    """Return advice if Django's own ``@task`` got options of this package, or nothing."""
    if isinstance(error, TypeError) and str(error).startswith(REFUSED):
        return (
            " Words such as max_attempts need a PerfectQueueBackend in TASKS; and on Django 6.0"
            " import task from django_perfectqueue.backend."
        )
    return ""


def no_handlers(dispatch: type[Dispatch]) -> str:
    if not issubclass(dispatch, Registry):
        return f"{dispatch.__qualname__} has no routes."
    return (
        "There are no handlers. Write @handler functions in the tasks module of an app in"
        " INSTALLED_APPS, or @task functions with a PerfectQueueBackend in TASKS; or name a"
        " Dispatch: manage.py pq_worker myapp.tasks.TaskDispatch."
    )
