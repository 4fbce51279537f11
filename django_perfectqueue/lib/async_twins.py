"""A method that may be called from a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[object, object, R]]:
    """Return the async twin of a method: it runs what has the method's name in a thread."""

    @wraps(method)
    async def in_thread(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await sync_to_async(getattr(self, method.__name__))(*args, **kwargs)
        return result

    in_thread.__name__ = f"a{method.__name__}"
    return in_thread


def in_event_loop() -> bool:
    """Return whether a query here would block an event loop, which Django refuses."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
