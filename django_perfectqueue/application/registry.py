"""Handlers found where they are written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import ClassVar, TypeVar

from django.utils.module_loading import autodiscover_modules

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.imports import path_of

from .dispatch import Dispatch, Pattern, Route, in_words
from .handler import Application, from_function

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
            names = {"__module__": target.__module__, "__qualname__": target.__qualname__}
            given = {**names, **attributes}
            made = type(target.__name__, (target,), given) if attributes else target
        else:
            raise ConfigError(f"@handler stands over {target!r}, which is no Application.")
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


def autodiscover() -> type[Registry]:
    """Import the ``tasks`` module of each installed app; return all that registered."""
    autodiscover_modules(MODULE)
    return Registry
