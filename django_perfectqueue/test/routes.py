"""Which handlers a worker of this project would have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from django_perfectqueue import compat
from django_perfectqueue.application import Dispatch
from django_perfectqueue.application.dispatch import in_words
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import UnknownTypeError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.worker.discovery import found, with_django_tasks

SHOWN = 20


class DjangoTaskRoute(Protocol):
    """What Django's ``@task`` makes of a function."""

    @property
    def module_path(self) -> str: ...


# A type of tasks: its name, or the Django task itself.
Kind = str | DjangoTaskRoute


def type_of(kind: Kind) -> str:
    """Return a type's name."""
    return kind if isinstance(kind, str) else kind.module_path


def types_of(kinds: Kind | Iterable[Kind]) -> set[str]:
    several: Any = [kinds] if isinstance(kinds, str) or hasattr(kinds, "module_path") else kinds
    return {type_of(kind) for kind in several}


def workers_dispatch(using: str) -> type[Dispatch]:
    """Return what pq_worker would route by, without a dispatch of its own on its line."""
    dispatch = found(options().DISPATCH)
    if compat.HAS_TASKS:
        dispatch, _queues = with_django_tasks(dispatch, using)
    return dispatch


def unknown(dispatch: type[Dispatch], type_: str, task: str) -> UnknownTypeError:
    """Return an error that lists the known types."""
    routes = sorted(map(in_words, dispatch.load()))
    more = f" and {len(routes) - SHOWN} more" if len(routes) > SHOWN else ""
    known = f"Known are: {', '.join(routes[:SHOWN])}{more}." if routes else "There are no handlers."
    return UnknownTypeError(
        f"There is no handler for {task}; in a worker it would wait."
        f"{nearest(type_, routes)} {known}"
    )
