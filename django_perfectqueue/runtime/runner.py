"""Run one task, and decide what becomes of it."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django_perfectqueue import logs, store
from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.application.decider import wait_after_error
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    PayloadError,
    PreemptedError,
    ProcessStopError,
    UnknownTypeError,
)
from django_perfectqueue.queue import AcquiredTask

from .database import AwayError, Link, Tidy
from .ending import Ending, announce, announce_start
from .guard import Guard

logger = logging.getLogger("django_perfectqueue.runner")

LEVELS = {"failed": (logging.ERROR, True), "retried": (logging.WARNING, True)}


@dataclass(slots=True, eq=False)
class Running:
    """An attempt that is going on."""

    task: AcquiredTask
    handler: Application | None = None
    active: bool = True
    told: set[type[BaseException]] = field(default_factory=set)


class Runner:
    """
    Runs tasks one after another in the thread that made it.

    Whatever a handler does, ``run()`` returns, the task is settled or ready to be, and
    the connections are as they were.
    """

    def __init__(self, dispatch: type[Dispatch], *, link: Link, guard: Guard) -> None:
        self.dispatch = dispatch
        self.link = link
        self.guard = guard
        self.tidy = Tidy()
        self.running: Running | None = None
        self.left: set[type[Application]] = set()

    def run(self, task: AcquiredTask) -> Ending:
        running = self.running = Running(task)
        told = logs.running.set(task)
        try:
            try:
                handler = self.dispatch.handler_for(task.type)(task)
            except UnknownTypeError as error:
                return self.settle(task, None, lambda: task.release(options().RETRY_WAIT), error)
            except BaseException as error:
                self.tidy.up()
                return self.after_error(task, None, error)
            handler.interrupter = functools.partial(self.guard.interrupt, running)
            running.handler = handler
            return self.perform(running, handler)
        finally:
            logs.running.reset(told)
            self.running = None

    def perform(self, running: Running, handler: Application) -> Ending:
        task = running.task
        announce_start(task, type(handler))
        try:
            result = self.guard.call(running, functools.partial(only_here, handler.run))
            running.active = False
            self.tidy.up(suspect=bool(running.told))
            return self.after_return(task, handler, result)
        except BaseException as error:
            running.active = False
            self.tidy.up(suspect=bool(running.told))
            return self.after_error(task, handler, error)

    def kill(self, running: Running, reason: BaseException) -> None:
        """Have a handler give up, for each kind of reason once; called from other threads."""
        handler = running.handler
        if handler is None or not running.active or type(reason) in running.told:
            return
        running.told.add(type(reason))
        try:
            handler.kill(reason)
        except Exception:
            logger.exception("A handler's kill() raised. %s", about(running.task))

    def after_return(self, task: AcquiredTask, handler: Application, result: Any) -> Ending:
        kind = type(handler)
        if task.settled:
            announce(task.settled, task, kind)
            return Ending(task.settled, task, kind, task.seconds)
        if not kind.auto_finish:
            self.warn_of_leaving(task, kind)
            return Ending("left", task, kind, task.seconds)
        completion = task.completion(result)
        return Ending("finished", task, kind, completion.seconds, completion)

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
            announce(task.settled, task, kind_of(handler))
            return Ending(task.settled, task, kind_of(handler), task.seconds, error=error)
        if isinstance(error, PreemptedError):
            return self.preempted(task, handler, error)
        if isinstance(error, CancelRequestedError) and self.is_cancel_requested(task):
            return self.settle(task, handler, task.cancel, error)
        if isinstance(error, ProcessStopError | KeyboardInterrupt):
            ending = self.settle(task, handler, task.release, error)
            ending.stop = True
            return ending
        if isinstance(error, PayloadError):
            why = failure(error)
            return self.settle(task, handler, lambda: task.fail(why=why), error)
        if handler is not None:
            self.ask(handler, error)
        return self.settle(task, handler, lambda: follow_policy(task, handler, error), error)

    def is_cancel_requested(self, task: AcquiredTask) -> bool:
        terms: dict[str, Any] = {"alive_time": None, "using": task.lease.using}
        try:
            [pulse] = self.link.insist(lambda: store.heartbeat([task.lease], **terms))
        except AwayError:
            return False
        return pulse.cancel_requested

    def ask(self, handler: Application, error: BaseException) -> None:
        """Let the decider settle the task; what it raises is not worth a processor."""
        try:
            handler.decide("unexpected_error_raised", error=error)
        except BaseException as trouble:
            if not isinstance(trouble, PreemptedError) and trouble is not error:
                logger.error(
                    "A decider raised; the task is tried again by policy. %s",
                    about(handler.task),
                    exc_info=trouble,
                )
        self.tidy.up()

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
            logger.error("A task is left to its lease: the database is away. %s", about(task))
            return Ending("left", task, kind_of(handler), task.seconds, error=error)
        log_ending(task, error)
        announce(task.settled, task, kind_of(handler))
        return Ending(task.settled, task, kind_of(handler), task.seconds, error=error)

    def preempted(
        self, task: AcquiredTask, handler: Application | None, error: BaseException
    ) -> Ending:
        logger.warning("A task was taken away while it ran; nothing is written. %s", about(task))
        return Ending("preempted", task, kind_of(handler), task.seconds, error=error)


def follow_policy(task: AcquiredTask, handler: Application | None, error: BaseException) -> None:
    """Have a task tried again, or fail it; with the plainest reason where a fuller one won't do."""
    wait = wait_after_error(task, handler)
    for why in (failure(error), store.Failure(error=name_of(error))):
        try:
            return task.fail(why=why) if wait is None else task.retry(wait, why=why)
        except ValueError:
            logger.exception("The reason for an error can't be stored as it is. %s", about(task))
    return None


def failure(error: BaseException) -> store.Failure:
    try:
        return store.Failure.of(error)
    except Exception:
        return store.Failure(error=name_of(error))


def name_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def kind_of(handler: Application | None) -> type[Application] | None:
    return None if handler is None else type(handler)


def log_ending(task: AcquiredTask, error: BaseException) -> None:
    level, traced = LEVELS.get(task.settled, (logging.INFO, False))
    trace = error if traced else None
    logger.log(level, "Task %s. %s", task.settled, about(task), exc_info=trace)


def about(task: AcquiredTask) -> str:
    """Return which task it is, for the log: never what is in it."""
    lease = task.lease
    return (
        f"queue={lease.queue} key={lease.key} type={lease.type} user={lease.user}"
        f" attempt={lease.tries}"
    )


def only_here(run: Callable[[], Any]) -> Any:
    """Run a handler, and end a process that it has forked and that comes back as well."""
    pid = os.getpid()
    try:
        return run()
    finally:
        if os.getpid() != pid:
            os._exit(1)
