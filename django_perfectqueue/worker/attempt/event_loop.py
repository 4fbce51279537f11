"""The event loop of a thread that runs tasks one after another, and its calls of functions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeGuard, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

from ..database.link import ConnectionCleanup

logger = logging.getLogger("django_perfectqueue.runner")

Work = Coroutine[object, object, object]


def is_coroutine(value: object) -> TypeGuard[Work]:
    return inspect.iscoroutine(value)


class EventLoop:
    """
    Runs coroutines one after another in one loop, so that they can share clients and pools.

    Another thread can interrupt one: it is cancelled at most once, and the reason is raised
    in place of its CancelledError.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.sync_calls = SyncCalls()
        self.token: object = None
        self.task: asyncio.Task[object] | None = None
        self.wanted: tuple[object, BaseException] | None = None
        self.reason: BaseException | None = None

    def call(self, token: object, function: Callable[[], Work]) -> object:
        self.token = token
        try:
            return self.drive(function())
        finally:
            self.token = None

    def drive(self, coroutine: Work) -> object:
        """Run a coroutine; return its result or raise its exception."""
        loop = self.opened()
        task = self.task = loop.create_task(self.sync_calls.around(coroutine))
        self.deliver()
        try:
            return loop.run_until_complete(task)
        except BaseException as error:
            self.end(loop, task)
            if isinstance(error, asyncio.CancelledError) and self.reason is not None:
                raise self.reason from error
            raise
        finally:
            self.task = self.reason = None
            # One that was cancelled before its first step was never awaited.
            coroutine.close()

    def end(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[object]) -> None:
        """Cancel a task whose loop was stopped, as by sys.exit() in another task."""
        if not task.done():
            task.cancel()
            with contextlib.suppress(BaseException):
                loop.run_until_complete(task)

    def interrupt(self, token: object, reason: BaseException) -> None:
        """Cancel the call with this token unless it has ended; from any thread."""
        self.wanted = token, reason
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        if self.wanted is None or self.task is None or self.wanted[0] is not self.token:
            return
        if self.reason is None:
            self.reason = self.wanted[1]
            self.task.cancel(self.reason)
        self.wanted = None

    def spawn(self, coroutine: Work) -> None:
        """Start a coroutine beside the running one; called from other threads."""
        if self.loop is not None:
            self.sync_calls.start(coroutine, self.loop).add_done_callback(log_error)

    def opened(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.loop = new_loop()
        return self.loop

    def close(self) -> None:
        if self.loop is not None:
            close_loop(self.loop)
            self.loop = None
        self.sync_calls.close()


def new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(TidyExecutor())
    return loop


def log_error(future: Future[object]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.error("A handler's kill() raised.", exc_info=error)


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks left in a stopped loop, and close it."""
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=1.0) if left else asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except BaseException:
        logger.exception("Tasks left in the event loop by handlers raised at its end.")
    finally:
        loop.close()


# Synchronous calls of handlers in an event loop, above all of Django's ORM.


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
