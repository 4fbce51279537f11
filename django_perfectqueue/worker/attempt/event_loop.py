"""The event loop of a thread that runs tasks one after another."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TypeGuard

from .sync_calls import SyncCalls, TidyExecutor

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
