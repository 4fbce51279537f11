"""Run tasks as coroutines of one event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from django.db import connections

from django_perfectqueue.application import Application
from django_perfectqueue.lib import running as current
from django_perfectqueue.queue import AcquiredTask

from ..attempt.event_loop import SyncCalls, Work, close_loop, log_error, new_loop
from ..attempt.interrupts import ThreadInterrupter
from ..attempt.running import Running
from ..attempt.surroundings import (
    AttemptEnd,
    announce_start_async,
    awithin,
    end_span,
    prepare,
    traced,
)
from .executors import JOIN_TIMEOUT, Executor, ThreadPool
from .state import IDLE, SharedState

logger = logging.getLogger("django_perfectqueue.processor")


class EventLoopThread(Executor):
    """
    Runs coroutines in the event loop of one thread, and functions in a thread pool.

    The loop waits for handlers only: another thread, the settler, writes failures.
    """

    def __init__(self, state: SharedState) -> None:
        super().__init__(state)
        # Only the loop can start coroutines, so a thread asks it to start the next task.
        self.pool = ThreadPool(state, self.hand_out)
        self.tasks: dict[Running, asyncio.Task[object]] = {}
        self.reasons: dict[Running, BaseException] = {}
        self.sync_calls = SyncCalls()
        self.closing = False
        self.pid = os.getpid()

    def open(self) -> None:
        self.loop = new_loop()
        self.settler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="settler")
        # In the settler's thread, which is the one that is interrupted.
        make = functools.partial(self.make_runner, ThreadInterrupter(), drive=self.drive)
        self.runner = self.settler.submit(make).result()
        self.thread = threading.Thread(target=self.live, name="event-loop", daemon=True)
        self.thread.start()

    def drive(self, coroutine: Work) -> object:
        return self.sync_calls.start(coroutine, self.loop).result()

    def live(self) -> None:
        prepare()
        self.base = copy_context()
        self.loop.call_later(IDLE, self.disconnect_if_idle)
        try:
            while not self.closing:
                self.run_loop()
        except BaseException as error:
            self.state.fail(error)
        close_loop(self.loop)
        self.sync_calls.close()

    def run_loop(self) -> None:
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            # Raised in a task that a handler started beside itself; the others go on.
            logger.exception("A task started by a handler raised an exit; it is ignored.")

    def remind(self) -> None:
        self.pool.remind()

    def dismiss(self) -> None:
        self.pool.dismiss()
        self.settler.submit(connections.close_all)
        self.settler.shutdown()
        self.closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(JOIN_TIMEOUT)

    def hand_out(self) -> None:
        self.loop.call_soon_threadsafe(self.begin)

    # For the thread of the loop.

    def disconnect_if_idle(self) -> None:
        """Close the connections of idle threads, once a minute."""
        if not (self.tasks or self.state.stopping):
            self.settler.submit(connections.close_all)
            self.sync_calls.disconnect()
        self.loop.call_later(IDLE, self.disconnect_if_idle)

    def begin(self) -> None:
        while running := self.state.next_task():
            if self.is_coroutine(running.task):
                # From the base context: the current one may be that of another task.
                context = self.base.copy()
                context.run(current.begin, running.task)
                self.tasks[running] = context.run(self.loop.create_task, self.attend(running))
            else:
                self.pool.send(running)

    def is_coroutine(self, task: AcquiredTask) -> bool:
        kind = self.state.plan.handler_for(task.lease)
        return kind is not None and kind.is_async

    async def attend(self, running: Running) -> None:
        try:
            ending = await self.run_traced(running)
            self.tasks.pop(running, None)
            self.reasons.pop(running, None)
            self.state.ended(running, ending)
        except BaseException as error:
            self.state.fail(error)
        self.begin()

    async def run_traced(self, running: Running) -> AttemptEnd:
        if not self.runner.is_traced:
            return await self.run_in_loop(running)
        with traced(running.task) as attempt:
            ending = await self.run_in_loop(running)
            end_span(attempt, ending)
        return ending

    async def run_in_loop(self, running: Running) -> AttemptEnd:
        """The life of an attempt, as that of a runner; what may block is done in the settler."""
        runner = self.runner
        runner.resolve_handler(running, self)
        await self.perform(running)
        try:
            if running.error is None and not running.task.settled:
                return runner.after_return(running)
        except BaseException as error:
            running.error = error
        settle = functools.partial(copy_context().run, runner.settle, running)
        return await self.loop.run_in_executor(self.settler, settle)

    async def perform(self, running: Running) -> None:
        """Run the handler; keep what it returns or raises."""
        if running.handler is None:
            return
        try:
            await announce_start_async(running.task, type(running.handler))
            running.result = await self.sync_calls.around(
                self.called(running.task, running.handler)
            )
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            running.error = self.reasons.get(running, error) if cancelled else error
        running.active = False

    async def called(self, task: AcquiredTask, handler: Application) -> object:
        """Run a handler; exit a child that it forked and that returns, too."""
        try:
            if self.runner.restores:
                return await awithin(task, handler.arun)
            return await handler.arun()
        finally:
            if os.getpid() != self.pid:
                os._exit(1)

    def cancel(self, running: Running, reason: BaseException) -> None:
        """Cancel a handler once, unless it has ended."""
        task = self.tasks.get(running)
        if task is not None and running.active and running not in self.reasons:
            self.reasons[running] = reason
            task.cancel(reason)

    # For other threads.

    def interrupt(self, running: Running, reason: BaseException) -> None:
        self.loop.call_soon_threadsafe(self.cancel, running, reason)

    def spawn(self, coroutine: Work) -> None:
        self.sync_calls.start(coroutine, self.loop).add_done_callback(log_error)
