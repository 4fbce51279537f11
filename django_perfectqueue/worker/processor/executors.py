"""What runs the tasks of a processor: its main thread, a pool of threads, or an event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

from django_perfectqueue.application import Application
from django_perfectqueue.lib import running as current
from django_perfectqueue.signals import task_started

from ..attempt.interrupts import Interrupter, MainThreadInterrupter, ThreadInterrupter
from ..attempt.runner import Runner
from ..attempt.surroundings import AttemptEnd, Running, announce_start, end_span, prepare, traced
from ..process.signals import Wakeup
from .state import IDLE, SharedState

R = TypeVar("R")

JOIN_TIMEOUT = 10.0


class Executor:
    """Runs the tasks that the feeder puts into the hand of the processor."""

    def __init__(self, state: SharedState) -> None:
        self.state = state

    def open(self) -> None:
        """Prepare in the new process."""

    def run(self, feed: Callable[[], int]) -> int:
        """Run until the end, with the feeder in this thread; return the exit code."""
        return feed()

    def hand_out(self) -> None:
        """Start tasks of the batch in the free places."""

    def dismiss(self) -> None:
        """End the idle threads."""

    def remind(self) -> None:
        """Repeat an interrupt that did not reach the handler."""

    def make_runner(self, interrupter: Interrupter) -> Runner:
        """Return a runner for this thread, which settles over a link of its own."""
        prepare()
        state, wakeup = self.state, Wakeup()
        state.wakeups.append(wakeup)
        return Runner(
            state.plan.dispatch,
            link=state.link(wakeup),
            interrupter=interrupter,
            event_loop=state.event_loop,
        )

    def next_item(self, queue: SimpleQueue[R]) -> R:
        """Wait for the next item; close the connections of this thread after a minute."""
        try:
            return queue.get(timeout=IDLE)
        except Empty:
            self.state.event_loop.sync_calls.disconnect()
            connections.close_all()
            return queue.get()


class MainThread(Executor):
    """Runs one task after another in the main thread; the feeder has a thread of its own."""

    def __init__(self, state: SharedState) -> None:
        super().__init__(state)
        self.interrupter = MainThreadInterrupter()
        self.queue: SimpleQueue[Running | None] = SimpleQueue()
        self.left = threading.Event()
        self.code = 0
        self.error: BaseException | None = None

    def open(self) -> None:
        self.interrupter.install()
        self.runner = self.make_runner(self.interrupter)

    def remind(self) -> None:
        self.interrupter.remind()

    def run(self, feed: Callable[[], int]) -> int:
        thread = threading.Thread(target=self.feed, args=[feed], name="feeder", daemon=True)
        thread.start()
        try:
            self.work()
        except BaseException as error:
            self.state.fail(error)
            raise
        finally:
            self.left.set()
            thread.join()
        if self.error is not None:
            raise self.error
        return self.code

    def feed(self, feed: Callable[[], int]) -> None:
        """The life of the feeder's thread. The main thread takes the signals."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        prepare()
        try:
            self.code = feed()
        except BaseException as error:
            self.error = error
        finally:
            self.queue.put(None)
            connections.close_all()

    def work(self) -> None:
        """Run what is handed out, then following tasks while there are any."""
        state, prefetch, runner = self.state, self.state.prefetch, self.runner
        while running := self.next_item(self.queue):
            began = time.monotonic()
            following: Running | None = running
            while following is not None:
                state.ended(following, copy_context().run(runner.attend, following))
                following = state.next_task()
                if following is None or prefetch.tasks >= prefetch.last:
                    # How long they have taken, with all around them.
                    now = time.monotonic()
                    prefetch.paced(now - began)
                    began = now

    def hand_out(self) -> None:
        if running := self.state.next_task():
            self.queue.put(running)

    def dismiss(self) -> None:
        self.queue.put(None)
        self.left.wait()


class ThreadPool(Executor):
    """
    As many threads as tasks ran at once so far, each with its own connections.

    A thread that has ended a task takes the next one itself, by ``following``. One that is
    idle for a minute closes its connections.
    """

    def __init__(
        self, state: SharedState, following: Callable[[], Running | None] | None = None
    ) -> None:
        super().__init__(state)
        self.following = following or state.next_task
        self.queue: SimpleQueue[Running | None] = SimpleQueue()
        self.lock = threading.Lock()
        self.idle = 0
        self.threads: list[threading.Thread] = []
        self.interrupters: list[ThreadInterrupter] = []

    def hand_out(self) -> None:
        while running := self.state.next_task():
            self.send(running)

    def send(self, running: Running) -> None:
        """
        Run a task in an idle thread or a new one.

        There are at most as many threads as places. A thread that has just freed a place
        becomes idle in a moment, so the queue does not wait.
        """
        with self.lock:
            if self.idle > 0 or len(self.threads) == self.state.hand.places:
                self.idle -= 1
            else:
                self.start()
        self.queue.put(running)

    def start(self) -> None:
        name = f"task-{len(self.threads) + 1}"
        thread = threading.Thread(target=self.work, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def remind(self) -> None:
        for interrupter in self.interrupters:
            interrupter.remind()

    def dismiss(self) -> None:
        for _thread in self.threads:
            self.queue.put(None)
        for thread in self.threads:
            thread.join(JOIN_TIMEOUT)

    def work(self) -> None:
        try:
            interrupter = ThreadInterrupter()
            self.interrupters.append(interrupter)
            runner = self.make_runner(interrupter)
            while running := self.next_item(self.queue):
                self.run_on(runner, running)
            connections.close_all()
        except BaseException as error:
            self.state.fail(error)

    def run_on(self, runner: Runner, running: Running) -> None:
        """Run a task, then following tasks while there are any."""
        following: Running | None = running
        while following is not None:
            self.state.ended(following, copy_context().run(runner.attend, following))
            following = self.following()
        with self.lock:
            self.idle += 1


class Coroutines(Executor):
    """
    Runs coroutines in the event loop, and functions in a thread pool.

    The loop waits for handlers only: another thread, the settler, writes failures.
    """

    def __init__(self, state: SharedState) -> None:
        super().__init__(state)
        # Only the loop can start coroutines, so a thread asks it to start the next task.
        self.pool = ThreadPool(state, self.hand_out)
        self.attempts: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        self.loop = self.state.event_loop.opened()
        self.settler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="settler")
        # In the settler's thread, which is the one that is interrupted.
        make = partial(self.make_runner, ThreadInterrupter())
        self.runner = self.settler.submit(make).result()
        prepare()
        self.base = copy_context()
        self.loop.call_soon_threadsafe(self.loop.call_later, IDLE, self.disconnect_if_idle)

    def remind(self) -> None:
        self.pool.remind()

    def dismiss(self) -> None:
        self.pool.dismiss()
        self.settler.submit(connections.close_all)
        self.settler.shutdown()

    def hand_out(self) -> None:
        self.loop.call_soon_threadsafe(self.begin)

    # For the thread of the loop.

    def disconnect_if_idle(self) -> None:
        """Close the connections of idle threads, once a minute."""
        if not (self.attempts or self.state.stopping):
            self.settler.submit(connections.close_all)
            self.state.event_loop.sync_calls.disconnect()
        self.loop.call_later(IDLE, self.disconnect_if_idle)

    def begin(self) -> None:
        while running := self.state.next_task():
            kind = self.state.plan.handler_for(running.task.lease)
            if kind is not None and kind.is_async:
                # From the base context: the current one may be that of another task.
                context = self.base.copy()
                context.run(current.begin, running.task)
                attempt = context.run(self.loop.create_task, self.attend(running))
                # The loop itself has weak references to its tasks only.
                self.attempts.add(attempt)
                attempt.add_done_callback(self.attempts.discard)
            else:
                self.pool.send(running)

    async def attend(self, running: Running) -> None:
        try:
            ending = await self.run_traced(running)
            self.state.ended(running, ending)
        except BaseException as error:
            self.state.fail(error)
        self.begin()

    async def run_traced(self, running: Running) -> AttemptEnd:
        if not self.runner.is_traced:
            return await self.live(running)
        with traced(running.task) as attempt:
            ending = await self.live(running)
            end_span(attempt, ending)
        return ending

    async def live(self, running: Running) -> AttemptEnd:
        """The life of an attempt, as that of a runner; what may block is done in the settler."""
        runner = self.runner
        runner.resolve_handler(running)
        if running.handler is not None:
            performing = self.perform(running, running.handler)
            await self.state.event_loop.sync_calls.around(performing)
        try:
            if running.error is None and not running.task.settled:
                return runner.after_return(running)
        except BaseException as error:
            running.error = error
        settle = partial(copy_context().run, runner.settle, running)
        return await self.loop.run_in_executor(self.settler, settle)

    async def perform(self, running: Running, handler: Application) -> None:
        if task_started.receivers:
            await sync_to_async(announce_start)(running.task, handler)
        await self.runner.perform_async(running, handler)
