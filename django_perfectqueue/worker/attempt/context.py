"""The context in which a task runs; it ends with the attempt."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import Context, copy_context
from typing import TypeVar

from asgiref.sync import _restore_context, sync_to_async
from django.core.cache import caches

from django_perfectqueue.payload import context
from django_perfectqueue.queue import AcquiredTask

R = TypeVar("R")


def prepare() -> None:
    """
    Create the caches in the context of this thread, whose tasks share them.

    Django keeps caches and their connections per context. Created in the context of a
    task, each task would open new connections.
    """
    for alias in caches:
        with contextlib.suppress(Exception):
            caches[alias]


def within(task: AcquiredTask, call: Callable[[], object]) -> object:
    """
    Call a function with what the submitter of a task has sent along, and with nothing else.

    Raise PayloadError if that can't be read, and any exception of a provider.
    """
    with context.restored_by_providers(task.context):
        return call()


async def awithin(task: AcquiredTask, call: Callable[[], Awaitable[object]]) -> object:
    """
    Do the same for a coroutine.

    Providers may set the connections of its synchronous calls, so they run in their thread.
    """
    inside = context.restored_by_providers(task.context)
    if not context.may_block():
        with inside:
            return await call()
    own = copy_context()
    async with AsyncExitStack() as stack:
        await in_thread(own, inside.__enter__)
        stack.push_async_exit(functools.partial(in_thread, own, inside.__exit__))
        return await call()


async def in_thread(own: Context, function: Callable[..., R], *given: object) -> R:
    """Call a function in a thread, in a context of which this one takes over what it sets."""

    def call() -> R:
        _restore_context(own)
        return function(*given)

    try:
        return await sync_to_async(own.run)(call)
    finally:
        _restore_context(own)
