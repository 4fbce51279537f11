"""Run one task, and decide what becomes of it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Protocol

from django.db import Error

from django_perfectqueue import logs, store
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
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.lib.running import running as current
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.signals import task_started
from django_perfectqueue.tracing import otel
from django_perfectqueue.verdicts import Verdict

from ..database.link import AwayError, ConnectionCleanup, Link
from .atomic import AtomicAttempt
from .context import restore
from .ending import Ending, announce, announce_start
from .event_loop import EventLoop, is_coroutine
from .fork_guard import exit_returning_fork
from .traceback import from_handler
from .tracing import end_span, traced

logger = logging.getLogger("django_perfectqueue.runner")
logger.addFilter(logs.Masked())

LEVELS = {"failed": (logging.ERROR, True), "retried": (logging.WARNING, True)}


@dataclass(slots=True, eq=False)
class Running:
    """
    An attempt that is going on.

    ``seat`` is its place on the slot, and ``spawn`` starts a coroutine in the event loop
    in which the handler runs, if it runs in one. It ``is_suspect`` when it may have been
    broken off in the middle of a statement. As long as it is ``alone`` nobody else can
    write to the database, and so take its task away.
    """

    task: AcquiredTask
    index: int = 0
    handler: Application | None = None
    active: bool = True
    reasons_sent: set[type[BaseException]] = field(default_factory=set)
    spawn: Callable[[Any], None] | None = None
    is_suspect: bool = False
    alone: bool = False

    def kill(self, reason: BaseException) -> None:
        """Have the handler give up, for each kind of reason once; called from other threads."""
        handler = self.handler
        if handler is None or not self.active or type(reason) in self.reasons_sent:
            return
        self.reasons_sent.add(type(reason))
        self.is_suspect = True
        # Before the handler ends: its lease has lapsed, even if nobody has taken the task yet.
        self.task._lost |= isinstance(reason, PreemptedError)
        with logs.about(self.task):
            try:
                outcome: Any = handler.kill(reason)
                if is_coroutine(outcome):
                    self.begin(outcome)
            except Exception:
                logger.exception("A handler's kill() raised. %s", about(self.task))

    def begin(self, coroutine: Any) -> None:
        if self.spawn is not None:
            self.spawn(coroutine)
            return
        coroutine.close()
        raise TypeError("kill() is a coroutine function, and perform() is none.")


class Interrupter(Protocol):
    """Lets another thread raise an exception inside of a call in this one, once."""

    def call(self, token: Any, function: Callable[[], Any]) -> Any: ...

    def interrupt(self, token: Any, reason: BaseException) -> None: ...


class Runner:
    """
    Runs tasks one after another in the thread that made it.

    Whatever a handler does, ``run()`` returns, the task is settled or ready to be, and
    the connections are as they were. Coroutines run in an event loop of this thread,
    unless there is another way to ``drive`` them to their end.

    What is in ``stops`` gives the task back and ends the process. KeyboardInterrupt is not:
    a worker takes its signals itself, so no Ctrl-C raises it there, only a handler.
    """

    stops: tuple[type[BaseException], ...] = (ProcessStopError,)

    def __init__(
        self,
        dispatch: type[Dispatch],
        *,
        link: Link,
        interrupter: Interrupter,
        drive: Callable[[Any], Any] | None = None,
    ) -> None:
        self.dispatch = dispatch
        self.link = link
        self.interrupter = interrupter
        self.event_loop = EventLoop()
        self.drive = drive or self.event_loop.drive
        self.cleanup = ConnectionCleanup()
        self.running: Running | None = None
        self.left: set[type[Application]] = set()
        self.is_traced = otel.is_on()

    def run(self, task: AcquiredTask) -> Ending:
        return self.attend(Running(task))

    def attend(self, running: Running) -> Ending:
        """Run a task in a context of its own, from its handler's making to its settling."""
        begin = self.begin_traced if self.is_traced else self.begin
        context = copy_context()
        context.run(current.set, running.task)
        self.running = running
        try:
            return context.run(begin, running)
        finally:
            self.running = None

    def begin_traced(self, running: Running) -> Ending:
        with traced(running.task) as attempt:
            ending = self.begin(running)
            end_span(attempt, ending)
        return ending

    def begin(self, running: Running) -> Ending:
        task = running.task
        try:
            if task.lease.context is not None:
                restore(task)
            handler = self.dispatch.handler_for(task.lease.type)(task)
        except UnknownTypeError as error:
            return self.settle(task, None, lambda: task.release(options().RETRY_WAIT), error)
        except BaseException as error:
            self.cleanup.run()
            return self.after_error(task, None, error)
        return self.perform(running, handler)

    def perform(self, running: Running, handler: Application) -> Ending:
        task = running.task
        run: Callable[[], Any] = handler.run
        interrupter = self.interrupter
        if handler.is_async:
            run, interrupter = handler.arun, self.event_loop
            running.spawn = self.event_loop.spawn
        handler.interrupter = functools.partial(interrupt, interrupter, running)
        running.handler = handler
        if task_started.receivers:
            announce_start(task, type(handler))
        call = functools.partial(interrupter.call, running, run)
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

    def after_return(self, task: AcquiredTask, handler: Application, result: Any) -> Ending:
        kind = type(handler)
        if task.settled:
            announce(task.settled, task, kind)
            return Ending(task.settled, task, kind, task.seconds)
        if not kind.auto_finish:
            self.warn_of_leaving(task, kind)
            return Ending("left", task, kind, task.seconds)
        completion = task.completion(result)
        seconds = completion.ended - completion.started
        return Ending("finished", task, kind, seconds, completion)

    def warn_of_leaving(self, task: AcquiredTask, kind: type[Application]) -> None:
        if kind not in self.left:
            self.left.add(kind)
            logger.warning(
                "A handler returned without settling its task; it comes back when its lease"
                " lapses. handler=%s %s",
                kind.__qualname__,
                about(task),
            )

    def after_error(
        self, task: AcquiredTask, handler: Application | None, error: BaseException
    ) -> Ending:
        if task.settled:
            logger.error(
                "A handler raised after its task was %s. %s",
                task.settled,
                about(task),
                exc_info=error,
            )
            announce(task.settled, task, kind_of(handler), error)
            return Ending(task.settled, task, kind_of(handler), task.seconds, error=error)
        if isinstance(error, PreemptedError) and (task._lost or not self.is_held(task)):
            return self.preempted(task, handler, error)
        if isinstance(error, CancelRequestedError) and self.is_cancel_requested(task):
            return self.settle(task, handler, task.cancel, error)
        if isinstance(error, self.stops):
            ending = self.settle(task, handler, task._let_go, error)
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
        Tell whether a task is held for sure, whatever its handler was refused: it may have
        settled the task twice in a transaction that was rolled back, or held another as well.
        """
        terms: dict[str, Any] = {"alive_time": None, "using": task.lease.using}
        try:
            [pulse] = self.link.once(lambda: store.heartbeat([task.lease], **terms))
        except Error:
            self.cleanup.run(suspect=True)
            return False
        return pulse.held

    def is_cancel_requested(self, task: AcquiredTask) -> bool:
        terms: dict[str, Any] = {"alive_time": None, "using": task.lease.using}
        try:
            [pulse] = self.link.insist(lambda: store.heartbeat([task.lease], **terms))
        except AwayError:
            return False
        return pulse.cancel_requested

    def ask(self, handler: Application, error: BaseException) -> BaseException:
        """
        Let the decider settle the task, or raise what is to become of it; return what holds.

        What else it raises is not worth a processor.
        """
        try:
            decision = handler.decide("unexpected_error_raised", error=error)
            if is_coroutine(decision):
                self.drive(decision)
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

    def settle(
        self,
        task: AcquiredTask,
        handler: Application | None,
        verb: Callable[[], None],
        error: BaseException,
    ) -> Ending:
        """Write what becomes of a task, unless that has been done, and tell of it."""
        try:
            if not task.settled:
                self.link.insist(verb)
        except PreemptedError as refusal:
            return self.preempted(task, handler, refusal)
        except AwayError:
            return self.leave(task, handler, error)
        log_ending(task, error)
        announce(task.settled, task, kind_of(handler), error)
        return Ending(task.settled, task, kind_of(handler), task.seconds, error=error)

    def leave(
        self, task: AcquiredTask, handler: Application | None, error: BaseException
    ) -> Ending:
        logger.error("A task is left to its lease: the database is away. %s", about(task))
        return Ending("left", task, kind_of(handler), task.seconds, error=error)

    def preempted(
        self, task: AcquiredTask, handler: Application | None, error: BaseException
    ) -> Ending:
        logger.warning("A task was taken away while it ran; nothing is written. %s", about(task))
        announce("preempted", task, kind_of(handler), error)
        return Ending("preempted", task, kind_of(handler), task.seconds, error=error)


def interrupt(interrupter: Interrupter, running: Running, reason: BaseException) -> None:
    running.is_suspect = True
    interrupter.interrupt(running, reason)


def ruling_for(
    task: AcquiredTask, handler: Application | type[Application] | None, error: BaseException
) -> Ruling:
    """Return what is to become of a task, whatever its handler's rules and its verdict do."""
    for asked in (handler, None):
        try:
            return ruling(task, asked, error)
        except BaseException:
            logger.exception("A handler's rules will not do; the usual ones hold. %s", about(task))
    return ruling(task, None, Exception())


def carry_out(what: Ruling | None, task: AcquiredTask, error: BaseException) -> None:
    """Settle a task; with the plainest reason where a fuller one can't be stored."""
    for why in (failure(error), plain_failure(error)):
        try:
            return None if what is None else what.settle(task, why)
        except ValueError:
            logger.exception("The reason for an error can't be stored as it is. %s", about(task))
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
    """Return which task it is, for the log: never what is in it."""
    lease = task.lease
    return printable(
        f"queue={lease.queue} key={lease.key} type={lease.type} user={lease.user}"
        f" attempt={lease.tries}"
    )
