"""Which handler runs a task; handlers are found where they are written."""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, TypeVar

from django.utils.module_loading import autodiscover_modules

from django_perfectqueue.backoff import error_rules
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import ConfigError, UnknownTypeError
from django_perfectqueue.fairness.declared import declare
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.imports import derived, imported, path_of
from django_perfectqueue.payload.limit_names import finders, of_types

from .base import Application, Function, from_function
from .middleware import arounds

logger = logging.getLogger("django_perfectqueue.fairness")

Pattern = str | re.Pattern[str]
Route = type[Application] | Function | str

# The types that every dispatch knows, before its own routes.
BUILT_IN: Mapping[str, Route] = {
    "perfectqueue.bulk": "django_perfectqueue.bulk.handler.BulkHandler"
}

# How many types are remembered; a pattern may match any number of them.
MOST_TYPES = 1_000


class Dispatch:
    """
    Routes the types of tasks to handlers; the first route that matches is taken.

    A string matches only the very same type. A compiled pattern matches wherever
    ``search`` finds it, so anchor it with ``^`` and ``$``. A handler is an Application,
    a function that takes the task, or the dotted path of either.
    """

    routes: ClassVar[Mapping[Pattern, Route]] = {}
    _found: ClassVar[dict[str, type[Application]]] = {}
    _made: ClassVar[dict[Pattern, type[Application]]] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls._found = {}
        cls._made = {}

    @classmethod
    def handler_for(cls, type_: str) -> type[Application]:
        """
        Return the handler for a type of task.

        Raise UnknownTypeError when no route matches, ConfigError when the route that
        does leads nowhere.
        """
        try:
            return cls._found[type_]
        except KeyError:
            found = cls.look_up(type_)
            if len(cls._found) >= MOST_TYPES:
                cls._found.clear()
            cls._found[type_] = found
            return found

    @classmethod
    def look_up(cls, type_: str) -> type[Application]:
        if type_ in BUILT_IN:
            return cls.build_handler(type_, BUILT_IN[type_])
        for pattern in cls.routes:
            known = cls.checked(pattern)
            if known == type_ if isinstance(known, str) else known.search(type_):
                return cls.handler_at(pattern)
        return cls._unrouted(type_)

    @classmethod
    def _unrouted(cls, type_: str) -> type[Application]:
        raise UnknownTypeError(f"{cls.__name__} has no route for tasks of type '{type_}'.")

    @classmethod
    def knows(cls, type_: str) -> bool:
        """Return whether a route matches this type."""
        try:
            cls.handler_for(type_)
        except UnknownTypeError:
            return False
        return True

    @classmethod
    def load(cls) -> dict[Pattern, type[Application]]:
        """
        Import every handler; return them by their routes.

        Raise ConfigError when a route is not as it must be.
        """
        return {cls.checked(pattern): cls.handler_at(pattern) for pattern in cls.routes}

    @classmethod
    def handlers(cls) -> Iterator[type[Application]]:
        """Yield each handler once."""
        yield from dict.fromkeys(cls.load().values())

    @classmethod
    def before_fork(cls) -> None:
        """Call before_fork() of each handler."""
        for handler in cls.handlers():
            handler.before_fork()

    @classmethod
    def after_fork(cls) -> None:
        """Call after_fork() of each handler."""
        for handler in cls.handlers():
            handler.after_fork()

    @classmethod
    def after_child_end(cls) -> None:
        """Call after_child_end() of each handler."""
        for handler in cls.handlers():
            handler.after_child_end()

    @classmethod
    def checked(cls, pattern: object) -> Pattern:
        if isinstance(pattern, str) and pattern:
            return pattern
        if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
            return pattern
        raise ConfigError(
            f"{cls.__name__} routes {pattern!r}: a route is a type of task,"
            " or a pattern that re.compile() has made."
        )

    @classmethod
    def handler_at(cls, pattern: Pattern) -> type[Application]:
        if pattern not in cls._made:
            cls._made[pattern] = cls.build_handler(pattern, cls.routes[pattern])
        return cls._made[pattern]

    @classmethod
    def build_handler(cls, pattern: Pattern, route: Route) -> type[Application]:
        place = f"{cls.__name__}.routes[{in_words(pattern)!r}]"
        target: object = imported(route, place) if isinstance(route, str) else route
        if isinstance(target, type):
            if issubclass(target, Application):
                return checked_handler(target)
        elif callable(target):
            return checked_handler(from_function(target))
        raise ConfigError(
            f"{place} leads to {target!r}, which is neither a subclass of"
            " Application nor a function."
        )


def checked_handler(handler: type[Application]) -> type[Application]:
    """
    Return a handler.

    Raise ConfigError when its limits, its rules for errors or its middleware will not do.
    """
    for name, problem in error_rules.problems(handler):
        raise ConfigError(f"{handler.__qualname__}.{name} {problem}")
    declare(handler.__qualname__, handler.limits)
    arounds[handler]
    return handler


def in_words(pattern: Pattern) -> str:
    """Return a route as a person would write it."""
    return pattern if isinstance(pattern, str) else pattern.pattern


# Handlers found where they are written.


T = TypeVar("T", bound=Callable[..., object])

MODULE = "tasks"


class Registry(Dispatch):
    """The routes of all handlers that ``@handler`` was written over."""

    routes: ClassVar[dict[Pattern, Route]] = {}

    @classmethod
    def add(cls, pattern: Pattern, target: type[Application]) -> None:
        """
        Add a route.

        Raise ConfigError when another handler has it.
        """
        pattern = cls.checked(pattern)
        there = cls.routes.get(pattern)
        if there is not None and path_of(there) != path_of(target):
            raise ConfigError(
                f"Both {path_of(there)} and {path_of(target)} handle '{in_words(pattern)}'."
            )
        cls.routes[pattern] = target
        cls._made.pop(pattern, None)
        cls._found.clear()
        of_types.clear()


def handler(*patterns: Pattern, **attributes: object) -> Callable[[T], T]:
    """
    Register an Application, or a function that takes the task, for some types of tasks.

    ``attributes`` are those of Application, such as ``max_attempts``. A ``backoff`` that is
    a function gets the error and the task. The class or function is left as it is, so it
    may still be called by itself.
    """
    if not patterns or callable(patterns[0]):
        raise ConfigError("@handler needs the type of the tasks: @handler('report').")
    if inspect.isfunction(backoff := attributes.get("backoff")):
        # It is given the error and the task, and no handler before them.
        attributes["backoff"] = staticmethod(backoff)
    unknown = [name for name in attributes if not hasattr(Application, name)]
    if unknown:
        near = nearest(unknown[0], (name for name in vars(Application) if name[0] != "_"))
        raise ConfigError(
            f"@handler takes the attributes of Application, not '{unknown[0]}'.{near}"
        )

    def register(target: T) -> T:
        if not isinstance(target, type):
            check_parameters(target)
            made = from_function(target, **attributes)
        elif issubclass(target, Application):
            made = derived(target, target, **attributes) if attributes else target
        else:
            raise ConfigError(f"@handler is applied to {target!r}, which is not an Application.")
        for pattern in patterns:
            Registry.add(pattern, made)
        return target

    return register


def check_parameters(function: Callable[..., object]) -> None:
    """Raise ConfigError for a function that can't be called with the task alone."""
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(
            f"A function under @handler takes the task, as in def {name}(task): {error}."
        ) from None
    except ValueError:
        return  # Nobody knows what one written in C takes.


def dispatch_at(path: str | None, place: str = "") -> type[Dispatch]:
    """
    Return the dispatch that this path names, or without one what ``@handler`` has registered.

    ``place`` is what has the path, such as a setting. Raise ConfigError where it can't be
    imported, or is no dispatch.
    """
    if not path:
        return autodiscover()
    target = imported(path, place)
    if not (isinstance(target, type) and issubclass(target, Dispatch)):
        raise ConfigError(f"'{path}' is not a subclass of Dispatch.")
    return target


def autodiscover() -> type[Registry]:
    """Import the ``tasks`` module of each installed app; return all that registered."""
    autodiscover_modules(MODULE)
    return Registry


# Of a program that submits: it imports the handlers once, and may meet any number of types.
found_once = functools.cache(dispatch_at)


def declared_limits(type_: str) -> tuple[str, ...]:
    """Return the names of limits that the handler of a type declares; it imports the handlers."""
    try:
        return tuple(found_once(options().DISPATCH).handler_for(type_).limits)
    except UnknownTypeError:
        return ()
    except Exception as error:
        # A worker, or its check, says more; a submitter does without handlers.
        logger.error("The limits of a type are unknown here. type=%s error=%s", type_, error)
        return ()


finders.append(declared_limits)
