"""Run one task, and decide its outcome."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Protocol

from django.db import Error

from django_perfectqueue import logs, store, tracing
from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.application.error_policy import Ruling, failure, plain_failure, ruling
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    InvalidResultError,
    PayloadError,
    PreemptedError,
    ProcessStopError,
    UnknownTypeError,
)
from django_perfectqueue.lib import running as current
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.payload.context import restored
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.signals import task_started
from django_perfectqueue.tracing import otel
from django_perfectqueue.verdicts import Verdict

from ..database.link import AwayError, ConnectionCleanup, Link
from .atomic import AtomicAttempt
from .context import awithin, within
from .ending import AttemptEnd, announce, announce_start
from .event_loop import EventLoop, Work, is_coroutine
from .fork_guard import exit_returning_fork
from .traceback import from_handler
from .tracing import end_span, traced

logger = logging.getLogger("django_perfectqueue.runner")
logger.addFilter(logs.Masked())

# In seconds. A task that takes no longer is charged when it ends.
SUDDEN = 0.1
# In seconds: how long a connection of handlers may be idle before it is checked.
CHECK_AFTER = 60.0
# It is charged again each time it has run so many times as long as it was charged for.
AGAIN = 1.5
LEVELS = {"failed": (logging.ERROR, True), "retried": (logging.WARNING, True)}


@dataclass(slots=True, eq=False)
class Running:
    """
    An attempt in progress.

    ``index`` is its position in the status. ``spawn`` starts a coroutine in the event loop of
    the handler, if it has one. It ``is_suspect`` if an interrupt may have hit a statement in
    progress. While it is ``alone``, it holds the only write lock of the database, so no
    other process can take its task. ``charged`` is what its user was charged for it while it
    ran, in seconds; 0.0 where it was not.
    """

    task: AcquiredTask
    index: int = 0
    handler: Application | None = None
    active: bool = True
    reasons_sent: set[type[BaseException]] = field(default_factory=set)
    spawn: Callable[[Work], None] | None = None
    is_suspect: bool = False
    alone: bool = False
    charged: float = 0.0

    def has_overrun(self, now: float) -> bool:
        """Return whether its user is to be charged more for it than it was, by this time."""
        task = self.task
        due = self.charged * AGAIN or max(2 * task.lease.charge, SUDDEN)
        return now - task.started >= due and not task.settled

    def kill(self, reason: BaseException) -> None:
        """Interrupt the handler, once for each type of reason; called from other threads."""
        handler = self.handler
        if handler is None or not self.active or type(reason) in self.reasons_sent:
            return
        self.reasons_sent.add(type(reason))
        self.is_suspect = True
        # Set before the handler ends: the lease expired, even if no other took the task yet.
        self.task._lost |= isinstance(reason, PreemptedError)
        with logs.about(self.task):
            try:
                outcome: object = handler.kill(reason)
                if is_coroutine(outcome):
                    self.begin(outcome)
            except Exception:
                logger.exception("A handler's kill() raised. %s", about(self.task))

    def begin(self, coroutine: Work) -> None:
        if self.spawn is not None:
            self.spawn(coroutine)
            return
        coroutine.close()
        raise TypeError("kill() is a coroutine function, and perform() is none.")


class Interrupter(Protocol):
    """Lets another thread raise an exception once inside of a call in this thread."""

    def call(self, token: object, function: Callable[[], Any]) -> object: ...

    def interrupt(self, token: object, reason: BaseException) -> None: ...


class Runner:
    """
    Runs tasks one after another in the thread that made it.

    ``run()`` returns whatever a handler does. The task is then settled or has a completion,
    and the connections are clean. Coroutines run in an event loop of this thread unless
    ``drive`` runs them elsewhere.

    Exceptions in ``stops`` release the task and end the process. KeyboardInterrupt is not
    one: a worker handles SIGINT itself, so only a handler can raise it.
    """

    stops: tuple[type[BaseException], ...] = (ProcessStopError,)

    def __init__(
        self,
        dispatch: type[Dispatch],
        *,
        link: Link,
        interrupter: Interrupter,
        drive: Callable[[Work], object] | None = None,
    ) -> None:
        self.dispatch = dispatch
        self.link = link
        self.interrupter = interrupter
        self.event_loop = EventLoop()
        self.drive = drive or self.event_loop.drive
        self.cleanup = ConnectionCleanup()
        self.running: Running | None = None
        self.errors = link.outage.errors
        self.check_at = 0.0
        self.left: set[type[Application]] = set()
        self.is_traced = otel.is_on()
        self.restores = bool(options().CONTEXT)

    def run(self, task: AcquiredTask) -> AttemptEnd:
        return self.attend(Running(task))

    def attend(self, running: Running) -> AttemptEnd:
        """Create the handler, run it and settle the task, in a new context."""
        if self.errors != self.link.outage.errors or running.task.started >= self.check_at:
            self.check_connections(running.task.started)
        begin = self.begin_traced if self.is_traced else self.begin
        context = copy_context()
        context.run(current.begin, running.task)
        self.running = running
        try:
            return context.run(begin, running)
        finally:
            self.running = None

    def check_connections(self, now: float) -> None:
        """Close those that have broken: all, where another link of this process had trouble."""
        errors = self.link.outage.errors
        self.cleanup.check(suspect=errors != self.errors)
        self.errors, self.check_at = errors, now + CHECK_AFTER

    def begin_traced(self, running: Running) -> AttemptEnd:
        with traced(running.task) as attempt:
            ending = self.begin(running)
            end_span(attempt, ending)
        return ending

    def begin(self, running: Running) -> AttemptEnd:
        task = running.task
        try:
            if task.lease.context is not None:
                tracing.restore(task.context)
            handler = self.dispatch.handler_for(task.lease.type)(task)
        except UnknownTypeError as error:
            return self.settle(task, None, lambda: task.release(options().RETRY_WAIT), error)
        except BaseException as error:
            self.cleanup.run()
            return self.after_error(task, None, error)
        return self.perform(running, handler)

    def perform(self, running: Running, handler: Application) -> AttemptEnd:
        task = running.task
        run: Callable[[], object] = handler.run
        interrupter = self.interrupter
        if handler.is_async:
            run, interrupter = handler.arun, self.event_loop
            running.spawn = self.event_loop.spawn
            if self.restores:
                run = functools.partial(awithin, task, run)
        handler.interrupter = functools.partial(interrupt, interrupter, running)
        running.handler = handler
        if task_started.receivers:
            announce_start(task, type(handler))
        call = functools.partial(interrupter.call, running, run)
        if self.restores and not handler.is_async:
            call = functools.partial(within, task, call)
        if handler.atomic:
            return AtomicAttempt(self, running, handler).perform(call)
        try:
            result = exit_returning_fork(call)
            running.active = False
            self.cleanup.run(suspect=running.is_suspect)
            return self.after_return(task, handler, result)
        except BaseException as error:
            running.active = False
            self.cleanup.run(suspect=running.is_suspect)
            return self.after_error(task, handler, from_handler(error))

    def after_return(self, task: AcquiredTask, handler: Application, result: object) -> AttemptEnd:
        kind = type(handler)
        if task.settled:
            announce(task.settled, task, kind)
            return AttemptEnd(task.settled, task, kind, task.seconds)
        if not kind.auto_finish:
            self.warn_unsettled(task, kind)
            return AttemptEnd("left", task, kind, task.seconds)
        completion = task.completion(result)
        seconds = completion.ended - completion.started
        return AttemptEnd("finished", task, kind, seconds, completion)

    def warn_unsettled(self, task: AcquiredTask, kind: type[Application]) -> None:
        if kind not in self.left:
            self.left.add(kind)
            logger.warning(
                "A handler returned without settling its task; it runs again when its lease"
                " expires. handler=%s %s",
                kind.__qualname__,
                about(task),
            )

    def after_error(
        self, task: AcquiredTask, handler: Application | None, error: BaseException
    ) -> AttemptEnd:
        if task.settled:
            logger.error(
                "A handler raised after its task was %s. %s",
                task.settled,
                about(task),
                exc_info=error,
            )
            announce(task.settled, task, kind_of(handler), error)
            return AttemptEnd(task.settled, task, kind_of(handler), task.seconds, error=error)
        if isinstance(error, PreemptedError) and (task._lost or not self.is_held(task)):
            return self.preempted(task, handler, error)
        if isinstance(error, CancelRequestedError) and self.is_cancel_requested(task):
            return self.settle(task, handler, task.cancel, error)
        if isinstance(error, self.stops):
            ending = self.settle(task, handler, lambda: task._end(store.Ending.release()), error)
            ending.stop = True
            return ending
        if isinstance(error, PayloadError | InvalidResultError):
            why = failure(error)
            return self.settle(task, handler, lambda: task.fail(why=why), error)
        if handler is not None and not isinstance(error, Verdict):
            error = self.ask(handler, error)
        self.cleanup.run()
        what = None if task.settled else ruling_for(task, handler, error)
        self.cleanup.run()
        return self.settle(task, handler, lambda: carry_out(what, task, error), error)

    def is_held(self, task: AcquiredTask) -> bool:
        """
        Return whether the database confirms the lease. A handler may raise PreemptedError
        without losing it: by settling twice in a rolled-back transaction, or for another task.
        """
        try:
            return self.link.once(lambda: pulse_of(task)).held
        except Error:
            self.cleanup.run(suspect=True)
            return False

    def is_cancel_requested(self, task: AcquiredTask) -> bool:
        try:
            return self.link.retry_until_done(lambda: pulse_of(task)).cancel_requested
        except AwayError:
            return False

    def ask(self, handler: Application, error: BaseException) -> BaseException:
        """
        Let the decider settle the task or raise a verdict; return the error that applies.

        Other exceptions of the decider are logged, and must not end the processor.
        """
        try:
            within(handler.task, functools.partial(self.decide, handler, error))
        except Verdict as verdict:
            verdict.__cause__ = verdict.__cause__ or error
            return verdict
        except BaseException as trouble:
            if not isinstance(trouble, PreemptedError) and trouble is not error:
                logger.error(
                    "A decider raised; the task is tried again by policy. %s",
                    about(handler.task),
                    exc_info=trouble,
                )
        return error

    def decide(self, handler: Application, error: BaseException) -> None:
        decision = handler.decide("unexpected_error_raised", error=error)
        if is_coroutine(decision):
            self.drive(awithin(handler.task, lambda: decision))

    def settle(
        self,
        task: AcquiredTask,
        handler: Application | None,
        verb: Callable[[], None],
        error: BaseException,
    ) -> AttemptEnd:
        """Write the outcome of a task unless it is settled; log it and send its signal."""
        try:
            if not task.settled:
                self.link.retry_until_done(verb)
        except PreemptedError as refusal:
            return self.preempted(task, handler, refusal)
        except AwayError:
            return self.leave(task, handler, error)
        log_ending(task, error)
        announce(task.settled, task, kind_of(handler), error)
        return AttemptEnd(task.settled, task, kind_of(handler), task.seconds, error=error)

    def leave(
        self, task: AcquiredTask, handler: Application | None, error: BaseException
    ) -> AttemptEnd:
        logger.error("A task is left to its lease: the database is away. %s", about(task))
        return AttemptEnd("left", task, kind_of(handler), task.seconds, error=error)

    def preempted(
        self, task: AcquiredTask, handler: Application | None, error: BaseException
    ) -> AttemptEnd:
        logger.warning("A task lost its lease while it ran; no result is written. %s", about(task))
        announce("preempted", task, kind_of(handler), error)
        return AttemptEnd("preempted", task, kind_of(handler), task.seconds, error=error)


def pulse_of(task: AcquiredTask) -> store.Pulse:
    """Ask the database about a task's lease, without renewing it."""
    [pulse] = store.heartbeat([task.lease], alive_time=None, using=task.lease.using)
    return pulse


def interrupt(interrupter: Interrupter, running: Running, reason: BaseException) -> None:
    running.is_suspect = True
    interrupter.interrupt(running, reason)


def ruling_for(
    task: AcquiredTask, handler: Application | type[Application] | None, error: BaseException
) -> Ruling:
    """Return the ruling on an error; by default rules if the handler's rules raise."""
    for asked in (handler, None):
        try:
            with restored(task.context):
                return ruling(task, asked, error)
        except BaseException:
            logger.exception("A handler's rules raised; the default rules apply. %s", about(task))
    return ruling(task, None, Exception())


def carry_out(what: Ruling | None, task: AcquiredTask, error: BaseException) -> None:
    """Settle a task; with a plain reason if the full one can't be stored."""
    for why in (failure(error), plain_failure(error)):
        try:
            return None if what is None else what.settle(task, why)
        except ValueError:
            logger.exception("An error can't be stored; a plain message is used. %s", about(task))
    return None


def kind_of(handler: Application | None) -> type[Application] | None:
    return None if handler is None else type(handler)


def log_ending(task: AcquiredTask, error: BaseException) -> None:
    level, traced = LEVELS.get(task.settled, (logging.INFO, False))
    if isinstance(error, Verdict) and task.settled != "failed":
        level, traced = logging.INFO, False
    if isinstance(error, InvalidResultError):
        # The message says what is wrong; the traceback is mostly that of this package.
        logger.log(level, "Task %s: %s %s", task.settled, error, about(task))
        return
    trace = error if traced else None
    logger.log(level, "Task %s. %s", task.settled, about(task), exc_info=trace)


def about(task: AcquiredTask) -> str:
    """Return the names of a task for the log, never its data."""
    lease = task.lease
    return printable(
        f"queue={lease.queue} key={lease.key} type={lease.type} user={lease.user}"
        f" attempt={lease.tries}"
    )
