"""Dotted paths: what one leads to, and the one that leads to a class or a function."""

from __future__ import annotations

from typing import Any

from django.utils.module_loading import import_string

from django_perfectqueue.exceptions import ConfigError


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


def path_of(target: Any) -> str:
    """Return the path of a class or a function."""
    return f"{target.__module__}.{target.__qualname__}"
