"""Run a handler in the transaction in which its task ends."""

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Callable

from django_perfectqueue import store
from django_perfectqueue.application import Application, time_limits
from django_perfectqueue.conf import options
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import Deferred

from ..database.link import AwayError
from .interrupts import Interrupter
from .settling import Settler, from_handler
from .surroundings import Running, within

logger = logging.getLogger("django_perfectqueue.runner")


class AtomicAttempt:
    """
    One attempt of a task whose handler is atomic.

    The handler's writes and the result of the task are committed together, or not at all.
    When the answer to that commit is lost, the database is asked for the outcome.
    """

    def __init__(self, settler: Settler, running: Running, handler: Application) -> None:
        self.settler = settler
        self.link = settler.link
        self.running = running
        self.task = running.task
        self.handler = handler
        self.joint = store.AtomicTransaction(self.task.lease.using)
        self.before = self.task.snapshot()
        self.has_returned = self.maybe_committed = False
        self.word = ""

    def perform(self, run: Callable[[], object], interrupter: Interrupter) -> None:
        try:
            self.begin()
            pid = os.getpid()
            try:
                self.running.result = run()
            finally:
                if os.getpid() != pid:
                    # A child that the handler has forked returns here, too.
                    os._exit(1)
            self.running.active = False
            self.end()
        except BaseException as error:
            self.running.active = False
            if not self.is_committed_after(error):
                return
        self.after_commit(interrupter)

    def begin(self) -> None:
        killed_after = sum(time_limits(type(self.handler), self.task.lease.time_limit, options()))
        still = killed_after if math.isfinite(killed_after) else None
        self.link.retry_until_done(lambda: self.joint.begin(still=still))
        self.task.deferred = Deferred(self.joint.connection)
        self.running.alone = self.joint.is_alone

    def end(self) -> None:
        """Commit the result; roll back where the handler did not settle its task: it runs again."""
        task, deferred = self.task, self.task.deferred
        assert deferred is not None
        if not (self.handler.auto_finish or deferred.settled):
            self.undo()
            task.restore(self.before)
            return
        task.deferred = None
        if not deferred.settled:
            deferred.add(functools.partial(task.finish, self.running.result))
        self.has_returned = True

        def write() -> None:
            self.settler.cleanup.restore_tenants()
            self.joint.check()
            self.joint.hasten()
            deferred.write()
            self.word = task.settled
            # From here until the answer, only the database knows whether it is committed.
            self.maybe_committed = True
            self.joint.commit()

        self.link.once(write)

    def after_commit(self, interrupter: Interrupter) -> None:
        """Call the handler's on_commit() hooks within its time limit."""
        running = self.running
        running.alone = False
        self.task.settled = self.word
        if not self.joint.hooks:
            return
        running.active = True
        try:
            call = functools.partial(interrupter.call, running, self.joint.call_hooks)
            within(self.task, call)
        except BaseException as error:
            running.is_suspect = True
            running.error = from_handler(error)
        running.active = False

    def is_committed_after(self, error: BaseException) -> bool:
        """Undo the attempt; return whether it is committed, though the answer to that was lost."""
        task, settler, running = self.task, self.settler, self.running
        running.error = error
        self.undo()
        try:
            outcome = self.outcome()
        except AwayError:
            running.ending = settler.leave(running)
            return False
        # A discarded task is stored as cancelled.
        if outcome == ("cancelled" if self.word == "discarded" else self.word):
            logger.warning(
                "The answer to a commit was lost, but the task is committed. key=%s error=%s",
                printable(task.key),
                type(error).__qualname__,
            )
            running.error = None
            return True
        task.restore(self.before)
        if outcome != store.leases.STILL_HELD:
            running.ending = settler.preempted(running)
        elif self.is_uncounted(error):
            release = functools.partial(task._end, store.Ending.release(self.delay))
            running.ending = settler.write_outcome(running, release)
        else:
            running.error = from_handler(error)
        return False

    def undo(self) -> None:
        suspect = self.running.is_suspect
        if suspect and self.joint.is_outermost:
            self.joint.abandon()
        else:
            self.joint.roll_back()
        self.settler.cleanup.run(suspect=suspect)
        self.running.alone = self.running.is_suspect = False
        self.task.deferred = None
        self.task.settled = ""

    def outcome(self) -> str:
        """Return the outcome of the attempt by the database, if a commit was sent."""
        if not self.maybe_committed:
            return store.leases.STILL_HELD
        terms = {"using": self.task.lease.using, "worker": self.task.worker}
        asked = functools.partial(store.leases.outcome_of, self.task.lease, **terms)
        return self.link.retry_until_done(asked)

    def is_uncounted(self, error: BaseException) -> bool:
        """
        Return whether the attempt does not count: the connection was lost, or the commit
        lost a race. At most MAX_CRASHES times, since the handler may cause it.
        """
        if self.uncounted >= options().MAX_CRASHES:
            return False
        lost = isinstance(error, AwayError) or self.joint.was_cut_off(error)
        return lost or (self.has_returned and self.joint.lost_a_race(error))

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
