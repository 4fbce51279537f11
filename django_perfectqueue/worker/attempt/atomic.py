"""Run a handler in the transaction in which its task ends."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_perfectqueue import store
from django_perfectqueue.application import Application, time_limits
from django_perfectqueue.conf import options
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import Deferred

from ..database.link import AwayError
from .context import within
from .ending import AttemptEnd
from .fork_guard import exit_returning_fork
from .traceback import from_handler

if TYPE_CHECKING:
    from .runner import Runner, Running

logger = logging.getLogger("django_perfectqueue.runner")


class AtomicAttempt:
    """
    One attempt of a task whose handler is atomic.

    The handler's writes and the result of the task are committed together, or not at all.
    When the answer to that commit is lost, the database is asked for the outcome.
    """

    def __init__(self, runner: Runner, running: Running, handler: Application) -> None:
        self.runner = runner
        self.link = runner.link
        self.running = running
        self.task = running.task
        self.handler = handler
        self.joint = store.AtomicTransaction(self.task.lease.using)
        self.before = self.task.snapshot()
        self.ending = self.maybe_committed = False
        self.word = ""

    def perform(self, run: Callable[[], object]) -> AttemptEnd:
        try:
            self.begin()
            result = exit_returning_fork(run)
            self.running.active = False
            if self.is_left():
                return self.leave()
            self.end(result)
        except BaseException as error:
            self.running.active = False
            return self.after_error(error)
        return self.after_commit()

    def begin(self) -> None:
        limits = time_limits(type(self.handler), self.task.lease.time_limit, options())
        still = limits.hard if math.isfinite(limits.hard) else None
        self.link.retry_until_done(lambda: self.joint.begin(still=still))
        self.task.deferred = Deferred(self.joint.connection)
        self.running.alone = self.joint.is_alone

    def is_left(self) -> bool:
        deferred = self.task.deferred
        return not self.handler.auto_finish and not (deferred and deferred.settled)

    def leave(self) -> AttemptEnd:
        """Roll back an attempt that did not settle its task: the task runs again."""
        self.undo()
        self.task.restore(self.before)
        return self.runner.after_return(self.task, self.handler, None)

    def end(self, result: object) -> None:
        """Write the result of the task, and commit."""
        task, deferred = self.task, self.task.deferred
        assert deferred is not None
        task.deferred = None
        if not deferred.settled:
            deferred.add(functools.partial(task.finish, result))
        self.ending = True

        def write() -> None:
            self.runner.cleanup.restore_tenants()
            self.joint.check()
            self.joint.hasten()
            deferred.write()
            self.word = task.settled
            # From here until the answer, only the database knows whether it is committed.
            self.maybe_committed = True
            self.joint.commit()

        self.link.once(write)

    def after_commit(self) -> AttemptEnd:
        self.running.alone = False
        self.task.settled = self.word
        try:
            self.call_hooks()
            self.runner.cleanup.run(suspect=self.running.is_suspect)
        except BaseException as error:
            self.runner.cleanup.run(suspect=True)
            return self.runner.after_error(self.task, self.handler, from_handler(error))
        return self.runner.after_return(self.task, self.handler, None)

    def call_hooks(self) -> None:
        """Call the handler's on_commit() hooks within its time limit."""
        if self.joint.hooks:
            self.running.active = True
            try:
                hooks = functools.partial(
                    self.runner.interrupter.call, self.running, self.joint.call_hooks
                )
                within(self.task, hooks)
            finally:
                self.running.active = False

    def after_error(self, error: BaseException) -> AttemptEnd:
        task, handler, runner = self.task, self.handler, self.runner
        self.undo()
        try:
            outcome = self.outcome()
        except AwayError:
            return runner.leave(task, handler, error)
        if outcome == self.expected:
            logger.warning(
                "The answer to a commit was lost, but the task is committed. key=%s error=%s",
                printable(task.key),
                type(error).__qualname__,
            )
            return self.after_commit()
        task.restore(self.before)
        if outcome != store.STILL_HELD:
            return runner.preempted(task, handler, error)
        if self.is_uncounted(error):
            return runner.settle(
                task, handler, lambda: task._end(store.Ending.release(self.delay)), error
            )
        return runner.after_error(task, handler, from_handler(error))

    def undo(self) -> None:
        suspect = self.running.is_suspect
        if suspect and self.joint.is_outermost:
            self.joint.abandon()
        else:
            self.joint.roll_back()
        self.runner.cleanup.run(suspect=suspect)
        self.running.alone = False
        self.task.deferred = None
        self.task.settled = ""

    def outcome(self) -> str:
        """Return the outcome of the attempt by the database, if a commit was sent."""
        if not self.maybe_committed:
            return store.STILL_HELD
        terms = {"using": self.task.lease.using, "worker": self.task.worker}
        asked = functools.partial(store.outcome_of, self.task.lease, **terms)
        return self.link.retry_until_done(asked)

    @property
    def expected(self) -> str:
        """The outcome that the commit writes: a discarded task is stored as cancelled."""
        return "cancelled" if self.word == "discarded" else self.word

    def is_uncounted(self, error: BaseException) -> bool:
        """
        Return whether the attempt does not count: the connection was lost, or the commit
        lost a race. At most MAX_CRASHES times, since the handler may cause it.
        """
        if self.uncounted >= options().MAX_CRASHES:
            return False
        lost = isinstance(error, AwayError) or self.joint.was_cut_off(error)
        return lost or (self.ending and self.joint.lost_a_race(error))

    @property
    def uncounted(self) -> int:
        """The number of uncounted attempts, snoozes included."""
        return self.task.lease.attempt - self.task.lease.tries

    @property
    def delay(self) -> float:
        """Seconds until the next attempt: none the first time."""
        if not self.uncounted:
            return 0.0
        wait = self.handler.retry_wait
        return options().RETRY_WAIT if wait is None else wait
