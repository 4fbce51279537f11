"""The event loop in which coroutines run, and their calls of functions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeGuard, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

from ..database.link import ConnectionCleanup

if TYPE_CHECKING:
    from .surroundings import Running

logger = logging.getLogger("django_perfectqueue.runner")

JOIN_TIMEOUT = 10.0

Work = Coroutine[object, object, object]


def is_coroutine(value: object) -> TypeGuard[Work]:
    return inspect.iscoroutine(value)


class EventLoop:
    """
    The event loop of a processor, so that its coroutines can share clients and pools. It runs
    in a thread of its own, which begins with the first of them.
    """

    def __init__(self) -> None:
        self.sync_calls = SyncCalls()
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closing = False

    def opened(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.loop is None:
                loop = self.loop = asyncio.new_event_loop()
                loop.set_default_executor(TidyExecutor())
                target = functools.partial(self.live, loop)
                self.thread = threading.Thread(target=target, name="event-loop", daemon=True)
                self.thread.start()
            return self.loop

    def live(self, loop: asyncio.AbstractEventLoop) -> None:
        """The life of its thread."""
        while not self.closing:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # Raised in a task that a handler started beside itself; the others go on.
                logger.exception("A task started by a handler raised an exit; it is ignored.")
        close_loop(loop)
        self.sync_calls.close()

    def close(self) -> None:
        if self.loop is not None:
            self.closing = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(JOIN_TIMEOUT)

    def start(self, coroutine: Work) -> Future[object]:
        """Start a coroutine beside others, in the context of the caller; from another thread."""
        return asyncio.run_coroutine_threadsafe(self.sync_calls.around(coroutine), self.opened())

    def drive(self, coroutine: Work) -> object:
        """Run a coroutine; return its result or raise its exception. From another thread."""
        return self.start(coroutine).result()

    def spawn(self, coroutine: Work) -> None:
        self.start(coroutine).add_done_callback(log_error)

    async def perform(self, running: Running, function: Callable[[], Awaitable[object]]) -> None:
        """Run a handler's coroutine; keep what it returns or raises."""
        running.coroutine, pid = asyncio.current_task(), os.getpid()
        try:
            if running.reason is not None:
                raise running.reason
            running.result = await function()
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            running.error = running.reason or error if cancelled else error
        finally:
            running.active = False
            if os.getpid() != pid:
                # A child that the handler has forked returns here, too.
                os._exit(1)

    def interrupt(self, running: Running, reason: BaseException) -> None:
        """Cancel a handler once, unless it has ended; from any thread."""
        self.opened().call_soon_threadsafe(self.cancel, running, reason)

    def cancel(self, running: Running, reason: BaseException) -> None:
        if running.active and running.reason is None:
            running.reason = reason
            if running.coroutine is not None:
                running.coroutine.cancel(reason)


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

    async def around(self, coroutine: Work) -> object:
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
