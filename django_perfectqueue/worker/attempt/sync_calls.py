"""Synchronous calls of handlers in an event loop, above all of Django's ORM."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

from ..database.link import ConnectionCleanup

logger = logging.getLogger("django_perfectqueue.runner")

P = ParamSpec("P")
R = TypeVar("R")

executors = SyncToAsync.context_to_thread_executor
own = threading.local()


def begin_thread() -> None:
    own.cleanup = ConnectionCleanup()


def tidy_thread() -> None:
    """Leave the connections of this thread clean; raise nothing, which would hide a result."""
    try:
        own.cleanup.run()
    except Exception:
        logger.exception("The connections of a coroutine could not be cleaned, and are closed.")
        with contextlib.suppress(Exception):
            connections.close_all()


class TidyExecutor(ThreadPoolExecutor):
    """The default executor of a loop: each call leaves the connections of its thread clean."""

    def __init__(self) -> None:
        super().__init__(initializer=begin_thread)

    def submit(self, function: Callable[P, R], /, *given: P.args, **named: P.kwargs) -> Future[R]:
        return super().submit(tidily, functools.partial(function, *given, **named))


def tidily(call: Callable[[], R]) -> R:
    try:
        return call()
    finally:
        tidy_thread()


class SyncCalls:
    """
    Threads for the synchronous calls of coroutines, each with connections of its own.

    There are as many as coroutines made such calls at once so far.
    """

    def __init__(self) -> None:
        self.idle: deque[ThreadPoolExecutor] = deque()

    async def around(self, coroutine: Coroutine[object, object, object]) -> object:
        """
        Await a coroutine whose synchronous calls are made in a thread that no other has meanwhile.

        Then the connections of the thread are clean.
        """
        calls = CallsOfOne(self)
        SyncToAsync.thread_sensitive_context.set(calls)
        try:
            return await coroutine
        finally:
            if tidied := calls.end():
                await asyncio.shield(asyncio.wrap_future(tidied))

    def start(
        self, coroutine: Coroutine[object, object, object], loop: asyncio.AbstractEventLoop
    ) -> Future[object]:
        """Start such a coroutine beside others; from any thread."""
        return asyncio.run_coroutine_threadsafe(self.around(coroutine), loop)

    def take(self) -> ThreadPoolExecutor:
        try:
            return self.idle.pop()
        except IndexError:
            return ThreadPoolExecutor(max_workers=1, initializer=begin_thread)

    def give_back(self, thread: ThreadPoolExecutor) -> Future[None]:
        """Clean the connections of a thread after its pending calls; then it is idle."""
        tidied = thread.submit(tidy_thread)
        tidied.add_done_callback(lambda done: self.idle.append(thread))
        return tidied

    def disconnect(self) -> None:
        """Close the connections of the idle threads."""
        for thread in list(self.idle):
            thread.submit(connections.close_all)

    def close(self) -> None:
        self.disconnect()
        while self.idle:
            self.idle.pop().shutdown()


class CallsOfOne(ThreadSensitiveContext, Executor):
    """
    The synchronous calls of one coroutine. The first one takes a thread.

    asgiref makes the calls of a coroutine in the thread of its outermost context, which is
    this one.
    """

    def __init__(self, threads: SyncCalls) -> None:
        super().__init__()
        self.threads = threads
        self.thread: ThreadPoolExecutor | None = None
        executors[self] = self

    def submit(self, function: Callable[P, R], /, *given: P.args, **named: P.kwargs) -> Future[R]:
        if self.thread is None:
            self.thread = self.threads.take()
        return self.thread.submit(function, *given, **named)

    def end(self) -> Future[None] | None:
        """Give the thread back; asgiref makes later calls in a thread that no task has."""
        executors.pop(self, None)
        return self.threads.give_back(self.thread) if self.thread else None
