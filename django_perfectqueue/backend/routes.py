"""How a worker's dispatch comes to know Django's tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django_perfectqueue.application import Dispatch

from .handler import handler_of
from .registry import definitions


class BackendRoutes(Mapping[object, object]):
    """
    Routes of a dispatch, and one for each Django task.

    An exact route of the dispatch goes first. A pattern does not: who wrote one that
    matches everything did not mean the tasks of Django.
    """

    def __init__(self, own: Mapping[Any, object]) -> None:
        self.own = own

    def __getitem__(self, pattern: Any) -> object:
        if pattern in self.own:
            return self.own[pattern]
        return handler_of(definitions[pattern])

    def __iter__(self) -> Iterator[object]:
        own = list(self.own)
        first = next((n for n, route in enumerate(own) if not isinstance(route, str)), len(own))
        yield from own[:first]
        yield from (name for name in definitions if name not in self.own)
        yield from own[first:]

    def __len__(self) -> int:
        return len(self.own) + sum(name not in self.own for name in definitions)


def with_django_tasks(dispatch: type[Dispatch]) -> type[Dispatch]:
    """Return a dispatch that knows Django's tasks beside its own types."""
    names = {
        "routes": BackendRoutes(dispatch.routes),
        "__module__": dispatch.__module__,
        "__qualname__": dispatch.__qualname__,
        "__doc__": dispatch.__doc__,
    }
    return type(dispatch.__name__, (dispatch,), names)
