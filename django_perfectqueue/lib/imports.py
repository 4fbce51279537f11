"""Dotted paths, and classes made under the names of others."""

from __future__ import annotations

from typing import Any, TypeVar

from django.utils.module_loading import import_string

from django_perfectqueue.exceptions import ConfigError

T = TypeVar("T")


def imported(path: str, place: str = "") -> object:
    """
    Return what a path leads to.

    Raise ConfigError, which names the place where the path is written, when it can't be had.
    """
    try:
        return import_string(path)
    except Exception as error:
        what = f"{place} names '{path}', which" if place else f"'{path}'"
        raise ConfigError(f"{what} can't be imported: {type(error).__name__}: {error}") from error


def derived(base: type[T], target: Any, **attributes: object) -> type[T]:
    """Return a class derived from ``base`` that has the names of a function or a class."""
    names = {
        "__module__": getattr(target, "__module__", __name__),
        "__qualname__": getattr(target, "__qualname__", repr(target)),
        "__doc__": target.__doc__,
    }
    return type(getattr(target, "__name__", "function"), (base,), {**names, **attributes})


def path_of(target: Any) -> str:
    """Return the path of a class or a function."""
    return f"{target.__module__}.{target.__qualname__}"
