"""What stands around the performing of tasks: for all, or for some handlers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction
from django.core.signals import setting_changed
from django.db import transaction

from django_perfectqueue.conf import SETTING, cached, options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.imports import imported, path_of

if TYPE_CHECKING:
    from .base import Application


# Which middleware stands around a handler, and in which order.


Perform = Callable[[], object]
Layer = Callable[[Any, Perform], Any]
Around = Callable[[Any], Any]

FOR_ALL = f"{SETTING}['MIDDLEWARE']"
FUNCTIONS, COROUTINES = "around_perform", "aaround_perform"


class Arounds(dict[type, Around]):
    """
    By the class of a handler, the function that runs one within its middleware.

    A lookup raises ConfigError for an object that is no middleware, or not for such handlers.
    """

    def __missing__(self, kind: type[Application]) -> Around:
        layers = [layer_for(kind, one) for one in middleware_of(kind)]
        innermost: Around = methodcaller(kind._bare_method())
        return self.setdefault(kind, functools.reduce(wrapped, reversed(layers), innermost))


arounds = Arounds()
# Made anew where a test changes a setting.
setting_changed.connect(lambda **kwargs: arounds.clear(), weak=False)


def wrapped(inner: Around, layer: Layer) -> Around:
    return lambda handler: layer(handler, functools.partial(performed, inner, handler))


def performed(inner: Around, handler: Application) -> object:
    """Do what is within a layer; what is done there by an atomic handler goes with its errors."""
    if not handler.atomic:
        return inner(handler)
    with transaction.atomic(using=handler.task.lease.using):
        return inner(handler)


def middleware_of(kind: type[Application]) -> list[object]:
    """Return each once, the outermost first: that for all, of the base classes, its own."""
    found: list[object] = []
    for one in (*for_all(), *own(kind)):
        if not any(one is other for other in found):
            found.append(one)
    return found


@cached
def for_all() -> tuple[object, ...]:
    """
    Return the middleware of all handlers.

    Raise ConfigError when one can't be imported, or is no middleware.
    """
    return tuple(build_middleware(path, FOR_ALL) for path in options().MIDDLEWARE)


def own(kind: type[Application]) -> Iterator[object]:
    for base in reversed(kind.__mro__):
        given = vars(base).get("middleware", ())
        place = f"{base.__qualname__}.middleware"
        if not isinstance(given, list | tuple):
            raise ConfigError(f"{place} must be a list, not {given!r}.")
        yield from (build_middleware(one, place) for one in given)


def build_middleware(given: object, place: str) -> object:
    """Return the middleware that a function, an object, a class or a dotted path stands for."""
    target: object = imported(given, place) if isinstance(given, str) else given
    if isinstance(target, type):
        kind = target
        try:
            target = only_one(kind)
        except TypeError as error:
            raise ConfigError(
                f"{place} has the class {kind.__qualname__}, which can't be made without"
                f" arguments: {error}. Make an object of it, and name that."
            ) from error
    if not any(halves(target)):
        raise ConfigError(
            f"{place} has {given!r}, which is no middleware: neither a function of the handler and"
            f" perform, nor anything with {FUNCTIONS}() or {COROUTINES}()."
        )
    return target


@functools.cache
def only_one(kind: type) -> object:
    return kind()


def halves(middleware: object) -> tuple[Layer | None, Layer | None]:
    """Return what it has for handlers that are functions, and for those that are coroutines."""
    around, aaround = (getattr(middleware, name, None) for name in (FUNCTIONS, COROUTINES))
    if around is None and aaround is None and callable(middleware):
        around = middleware
    if around is not None and is_async(around):
        around, aaround = None, aaround or around
    return around, aaround


def layer_for(kind: type[Application], middleware: object) -> Layer:
    around, aaround = halves(middleware)
    if (layer := aaround if kind.is_async else around) is not None:
        return layer
    named = middleware if hasattr(middleware, "__qualname__") else type(middleware)
    what, needed, other = (
        ("a coroutine", f"async def {COROUTINES}", "functions")
        if kind.is_async
        else ("a function", f"def {FUNCTIONS}", "coroutines")
    )
    raise ConfigError(
        f"The handler {kind.__qualname__} is {what}, but its middleware {path_of(named)} is"
        f" only for {other}: write it as a class with '{needed}(self, handler, perform)' as well."
    )


# Distinguish coroutine functions from other callables.


def is_async(function: Callable[..., object]) -> bool:
    """Return whether a function, a partial of one or a callable object returns a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)
