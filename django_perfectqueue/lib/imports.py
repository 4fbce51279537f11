"""Dotted paths, and classes made under the names of others."""

from __future__ import annotations

import traceback
from typing import Any, TypeVar

from django.utils.module_loading import import_string

from django_perfectqueue.exceptions import ConfigError

from .printable import on_one_line

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
        raise ConfigError(f"{what} can't be imported: {what_and_where(error)}") from error


def what_and_where(error: Exception) -> str:
    """Return the error of a module in one line, with file and line where they are known."""
    message, place = str(error), None
    if isinstance(error, SyntaxError) and error.filename:
        message, place = error.msg, (error.filename, error.lineno)
    else:
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.name == "<module>":
                place = (frame.filename, frame.lineno)
    what = on_one_line(f"{type(error).__name__}: {message}" if message else type(error).__name__)
    if place is None:
        return what
    return f"{what} ({place[0]}, line {place[1]})"


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
