"""Distinguish coroutine functions from other callables."""

from __future__ import annotations

import functools
from collections.abc import Callable

from asgiref.sync import iscoroutinefunction


def is_async(function: Callable[..., object]) -> bool:
    """Return whether a function, a partial of one or a callable object returns a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)
