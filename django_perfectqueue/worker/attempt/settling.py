"""Decide what becomes of a task whose attempt has ended, and write that."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

from django.db import Error, connections

from django_perfectqueue import exceptions, store
from django_perfectqueue.application import Application
from django_perfectqueue.application.error_policy import Ruling, failure, plain_failure, ruling
from django_perfectqueue.conf import options
from django_perfectqueue.payload.context import restored
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.store.values import Pulse
from django_perfectqueue.verdicts import Verdict

from ..database.link import AwayError, ConnectionCleanup, Link
from .event_loop import EventLoop, is_coroutine
from .surroundings import AttemptEnd, Running, about, announce, awithin, within

logger = logging.getLogger("django_perfectqueue.runner")

INTERRUPTS = (
    exceptions.CancelRequestedError,
    exceptions.PreemptedError,
    exceptions.TimeLimitError,
    exceptions.ProcessStopError,
)
OURS = __name__.partition(".")[0]

LEVELS = {"failed": logging.ERROR, "retried": logging.WARNING}


class Settler:
    """
    Settles tasks by what their handlers have returned or raised, over one link.

    Exceptions in ``stops`` release the task and end the process. KeyboardInterrupt is not
    one: a worker handles SIGINT itself, so only a handler can raise it.
    """

    stops: tuple[type[BaseException], ...] = (exceptions.ProcessStopError,)

    def __init__(self, link: Link, event_loop: EventLoop) -> None:
        self.link = link
        self.event_loop = event_loop
        self.cleanup = ConnectionCleanup()
        self.left: set[type[Application]] = set()

    def settle(self, running: Running) -> AttemptEnd:
        """Settle the task of an attempt, or return its completion, which is to be written."""
        if running.ending is not None:
            return running.ending
        if running.error is None:
            try:
                return self.after_return(running)
            except BaseException as error:
                self.cleanup.run()
                running.error = from_handler(error)
        try:
            raise running.error
        except BaseException as error:
            # Receivers of signals, Django's own among them, read it by sys.exc_info().
            return self.after_error(running, from_handler(error))

    def after_return(self, running: Running) -> AttemptEnd:
        task, handler = running.task, running.handler
        if task.settled or handler is None:
            return ended(running, task.settled)
        if not handler.auto_finish:
            self.warn_unsettled(task, type(handler))
            return ended(running, "left")
        done = task.completion(running.result)
        return AttemptEnd("finished", task, type(handler), done.ended - done.started, done)

    def warn_unsettled(self, task: AcquiredTask, kind: type[Application]) -> None:
        if kind not in self.left:
            self.left.add(kind)
            logger.warning(
                "A handler returned without settling its task; it runs again when its lease"
                " expires. handler=%s %s",
                kind.__qualname__,
                about(task),
            )

    def after_error(self, running: Running, error: BaseException) -> AttemptEnd:
        task = running.task
        if word := task.settled:
            if task.parting is None or isinstance(error, Exception):
                text = "A handler raised after its task was %s. %s"
                logger.error(text, word, about(task), exc_info=error)
            return ended(running, word)
        # One that was sent means that the lease expired, even if no other took the task yet.
        lost = exceptions.PreemptedError in running.reasons_sent
        if isinstance(error, exceptions.PreemptedError) and (lost or not self.is_held(task)):
            return self.preempted(running)
        ending = self.write_outcome(running, self.verb_after(running, error))
        ending.stop = isinstance(error, self.stops)
        return ending

    def verb_after(self, running: Running, error: BaseException) -> Callable[[], None]:
        """Return what settles the task of an attempt that has ended in an error."""
        task, handler = running.task, running.handler
        if handler is None and isinstance(error, exceptions.UnknownTypeError):
            return functools.partial(task.release, options().RETRY_WAIT)
        if isinstance(error, exceptions.CancelRequestedError) and self.is_cancel_requested(task):
            return task.cancel
        if isinstance(error, self.stops):
            return functools.partial(task._end, store.Ending.release())
        if isinstance(error, exceptions.PayloadError | exceptions.InvalidResultError):
            return functools.partial(task.fail, why=failure(error))
        # YieldedError or SuspendedError, or the group in which a task group raises it.
        if task.parting is not None and not isinstance(error, Exception):
            running.error = None
            return functools.partial(task._end, task.parting)
        if handler is not None and not isinstance(error, Verdict):
            error = running.error = self.ask(handler, error)
        self.cleanup.run()
        what = None if task.settled else ruling_for(task, handler, error)
        self.cleanup.run()
        return functools.partial(carry_out, what, task, error)

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
            if not isinstance(trouble, exceptions.PreemptedError) and trouble is not error:
                logger.error(
                    "A decider raised; the task is tried again by policy. %s",
                    about(handler.task),
                    exc_info=trouble,
                )
        return error

    def decide(self, handler: Application, error: BaseException) -> None:
        decision = handler.decide("unexpected_error_raised", error=error)
        if is_coroutine(decision):
            self.event_loop.drive(awithin(handler.task, lambda: decision))

    def write_outcome(self, running: Running, verb: Callable[[], None]) -> AttemptEnd:
        """Write the outcome of a task unless it is settled; log it and send its signal."""
        task = running.task
        try:
            if not task.settled:
                self.link.retry_until_done(verb)
        except exceptions.PreemptedError as refusal:
            running.error = refusal
            return self.preempted(running)
        except AwayError:
            return self.leave(running)
        log_ending(task, running.error)
        return ended(running, task.settled)

    def leave(self, running: Running) -> AttemptEnd:
        text = "A task is left to its lease: the database is away. %s"
        logger.error(text, about(running.task))
        return ended(running, "left")

    def preempted(self, running: Running) -> AttemptEnd:
        text = "A task lost its lease while it ran; no result is written. %s"
        logger.warning(text, about(running.task))
        return ended(running, "preempted")


def ended(running: Running, word: str) -> AttemptEnd:
    """Send the signal of an outcome, and return it."""
    task, error = running.task, running.error
    kind = None if running.handler is None else type(running.handler)
    announce(word, task, kind, error)
    return AttemptEnd(word, task, kind, task.seconds, error=error)


def pulse_of(task: AcquiredTask) -> Pulse:
    """Ask the database about a task's lease, without renewing it."""
    [pulse] = store.leases.heartbeat([task.lease], alive_time=None, using=task.lease.using)
    return pulse


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


def log_ending(task: AcquiredTask, error: BaseException | None) -> None:
    level = LEVELS.get(task.settled, logging.INFO)
    if isinstance(error, Verdict) and task.settled != "failed":
        level = logging.INFO
    if isinstance(error, exceptions.InvalidResultError):
        # The message says what is wrong; the traceback is mostly that of this package.
        logger.log(level, "Task %s: %s %s", task.settled, error, about(task))
        return
    trace = error if level > logging.INFO else None
    logger.log(level, "Task %s. %s", task.settled, about(task), exc_info=trace)


def from_handler(error: BaseException) -> BaseException:
    """
    Return what a handler has raised, its traceback cut to begin in the handler; it is kept whole
    if no frame is the handler's.
    """
    error = interrupt_behind(error)
    entry = error.__traceback__
    while entry is not None and is_ours(entry):
        entry = entry.tb_next
    return error if entry is None else error.with_traceback(entry)


def interrupt_behind(error: BaseException) -> BaseException:
    """Return the interrupt that broke a statement off where the rollback then failed."""
    drivers = (cast(Any, each).Database.Error for each in connections.all(initialized_only=True))
    behind = error.__context__ if isinstance(error, (Error, *drivers)) else None
    while behind is not None and not isinstance(behind, INTERRUPTS):
        behind = behind.__context__
    return behind or error


def is_ours(entry: TracebackType) -> bool:
    module: str = entry.tb_frame.f_globals.get("__name__") or ""
    return module.partition(".")[0] == OURS
