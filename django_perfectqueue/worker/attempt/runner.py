"""Run one task: the life of an attempt."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from contextvars import copy_context

from django_perfectqueue import tracing
from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.conf import options
from django_perfectqueue.lib import running as current
from django_perfectqueue.queue import AcquiredTask

from ..database.link import Link
from .atomic import AtomicAttempt
from .event_loop import EventLoop
from .interrupts import Interrupter
from .settling import Settler, from_handler
from .surroundings import AttemptEnd, Running, announce_start, awithin, end_span, traced, within

# In seconds: how long a connection of handlers may be idle before it is checked.
CHECK_AFTER = 60.0


class Runner(Settler):
    """
    Runs tasks one after another in the thread that made it.

    ``run()`` returns whatever a handler does. The task is then settled or has a completion,
    and the connections are clean.
    """

    def __init__(
        self,
        dispatch: type[Dispatch],
        *,
        link: Link,
        interrupter: Interrupter,
        event_loop: EventLoop,
    ) -> None:
        super().__init__(link, event_loop)
        self.dispatch = dispatch
        self.interrupter = interrupter
        self.running: Running | None = None
        self.errors = link.outage.errors
        self.check_at = 0.0
        self.is_traced = options().TRACING
        self.attend = self.traced if self.is_traced else self.live
        """Runs an attempt in the context of the caller, which is for this attempt only."""
        self.restores = bool(options().CONTEXT)

    def run(self, task: AcquiredTask) -> AttemptEnd:
        self.running = Running(task)
        return copy_context().run(self.attend, self.running)

    def live(self, running: Running) -> AttemptEnd:
        """The life of an attempt. What goes wrong in a step is kept for the last one."""
        self.check_connections(running)
        current.begin(running.task)
        self.resolve_handler(running)
        announce_start(running.task, running.handler)
        self.perform(running)
        self.clean_connections(running)
        return self.settle(running)

    def traced(self, running: Running) -> AttemptEnd:
        with traced(running.task) as attempt:
            ending = self.live(running)
            end_span(attempt, ending)
        return ending

    def check_connections(self, running: Running) -> None:
        """Close those that have broken: all, where another link of this process had trouble."""
        errors, now = self.link.outage.errors, running.task.started
        if self.errors != errors or now >= self.check_at:
            self.cleanup.check(suspect=errors != self.errors)
            self.errors, self.check_at = errors, now + CHECK_AFTER

    def resolve_handler(self, running: Running) -> None:
        """
        Create the handler, in the trace of its submitter; other threads may interrupt it from
        now on.
        """
        task = running.task
        try:
            if task.lease.context is not None:
                tracing.restore(task.context)
            handler = self.dispatch.handler_for(task.lease.type)(task)
        except BaseException as error:
            running.error = error
            return
        interrupt: Callable[[Running, BaseException], None] = self.interrupter.interrupt
        if handler.is_async:
            interrupt, running.spawn = self.event_loop.interrupt, self.event_loop.spawn
        handler.interrupter = functools.partial(running.interrupt, interrupt)
        running.handler = handler

    def perform(self, running: Running) -> None:
        """Run the handler; keep what it returns or raises."""
        handler = running.handler
        if handler is None:
            return
        if handler.is_async:
            self.event_loop.drive(self.perform_async(running, handler))
            return
        call = functools.partial(self.interrupter.call, running, handler.run)
        if self.restores:
            call = functools.partial(within, running.task, call)
        if handler.atomic:
            AtomicAttempt(self, running, handler).perform(call, self.interrupter)
            return
        pid = os.getpid()
        try:
            running.result = call()
        except BaseException as error:
            running.error = from_handler(error)
        finally:
            running.active = False
            if os.getpid() != pid:
                # A child that the handler has forked returns here, too.
                os._exit(1)

    async def perform_async(self, running: Running, handler: Application) -> None:
        """Run a handler that is a coroutine, in the event loop."""
        call: Callable[[], Awaitable[object]] = handler.arun
        if self.restores:
            call = functools.partial(awithin, running.task, handler.arun)
        await self.event_loop.perform(running, call)

    def clean_connections(self, running: Running) -> None:
        try:
            self.cleanup.run(suspect=running.is_suspect)
        except BaseException as error:
            running.error = running.error or from_handler(error)
            self.cleanup.run(suspect=running.is_suspect)
