"""The short-lived helper that releases the tasks of a dead processor."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from django_perfectqueue import exceptions, logs, store
from django_perfectqueue.application import Application
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.store.tasks.close import Loss

from ..attempt.settling import ruling_for
from ..attempt.surroundings import AttemptEnd, about, announce
from ..buffers import UsageBuffer
from ..database.link import AwayError
from ..plan import Plan
from ..report import Reporter
from .base import Helper

logger = logging.getLogger("django_perfectqueue.supervisor")
logger.addFilter(logs.Masked())

LAST_TRIES = 10.0
Handler = Application | type[Application] | None
TIMED_OUT = path_of(exceptions.TimeLimitError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """
    The leases of a dead processor, and why they are lost.

    ``overdue`` maps the tasks for which it was killed, since they ignored an interrupt, to
    their running time.
    """

    holder: int
    loss: Loss
    overdue: Mapping[int, float] = field(default_factory=dict)


class Reaper(Helper):
    """
    Releases the tasks of a dead processor before their leases expire, and settles those that
    were killed.

    It has a process of its own, so that the supervisor never waits for a database.
    """

    def __init__(self, plan: Plan, leftovers: Leftovers, reporter: Reporter) -> None:
        super().__init__(plan)
        self.leftovers = leftovers
        self.loss = leftovers.loss
        self.reporter = reporter
        self.announcements: list[Callable[[], None]] = []
        self.usage = UsageBuffer(using=plan.using, kept=plan.options.USAGE_TIME != 0)

    def work(self) -> None:
        try:
            crashed = (*self.loss.crashed, *self.settle_overdue())
            lost = self.link.retry_until_done(lambda: self.held(crashed)) if crashed else []
            self.link.retry_until_done(lambda: self.give_back(crashed))
            for lease, _cancel in lost:
                task = AcquiredTask(lease, worker=self.loss.worker)
                logger.error("A task crashed: %s %s", self.loss.why.message, about(task))
                seconds = self.loss.seconds.get(lease.task_id, 0.0)
                self.report(AttemptEnd("crashed", task, None, seconds))
            self.link.try_once(self.usage.write, "The usage of a dead processor")
        except AwayError:
            logger.debug("The database is away; the tasks run again when their leases expire.")
        for announcement in self.announcements:
            announcement()

    def patience(self) -> float:
        """Retry until the leases have expired."""
        return LAST_TRIES if self.stopping else self.plan.options.ALIVE_TIME

    def settle_overdue(self) -> tuple[int, ...]:
        """Settle the killed tasks; return the ids of those without a known reason."""
        if not self.leftovers.overdue:
            return ()
        found = self.link.retry_until_done(lambda: self.held(tuple(self.leftovers.overdue)))
        return tuple(lease.task_id for lease, cancel in found if not self.settle(lease, cancel))

    def settle(self, lease: store.Lease, cancel: bool) -> bool:
        """Settle a killed task as its handler would have; return whether the reason is known."""
        limit, wait = self.plan.time_limits(lease)
        force = f"It had not ended {wait:g} s after it was asked to, so its processor was killed."
        seconds = self.leftovers.overdue[lease.task_id]
        error: exceptions.TaskError
        if cancel:
            error = exceptions.CancelRequestedError(f"Someone asked for it. {force}")
            word = "cancel requested"
        elif seconds >= limit:
            error = exceptions.TimeLimitError(f"Its time limit is {limit:g} s. {force}")
            word = "timed out"
        else:
            return False
        task = AcquiredTask(lease, worker=self.loss.worker)
        handler = self.handler_for(task)

        def end() -> None:
            task.started = time.monotonic() - seconds
            if cancel:
                task._end(store.Ending.cancel(store.Failure(error="cancelled", message=str(error))))
            else:
                with logs.about(task):
                    what = ruling_for(task, handler, error)
                what.settle(task, store.Failure(error=TIMED_OUT, message=str(error)))

        try:
            self.link.retry_until_done(lambda: prepare(handler, error))
            self.link.retry_until_done(end)
        except exceptions.PreemptedError:
            logger.warning("A killed task had lost its lease. key=%s", printable(lease.key))
            return True
        kind = handler if isinstance(handler, type) or handler is None else type(handler)
        self.announcements.append(partial(announce, task.settled, task, kind, error))
        logger.error(
            "A task was killed with its processor: %s, %s. key=%s type=%s",
            word,
            task.settled,
            printable(lease.key),
            printable(lease.type),
        )
        self.report(AttemptEnd(task.settled, task, kind, seconds, error=error))
        return True

    def handler_for(self, task: AcquiredTask) -> Handler:
        """Return the handler for a task; an instance may have other rules than its class."""
        kind = self.plan.handler_for(task.lease)
        try:
            return None if kind is None else kind(task)
        except Exception:
            logger.debug("A handler can't be created. type=%s", printable(task.type), exc_info=True)
            return kind

    def held(self, ids: tuple[int, ...]) -> list[tuple[store.Lease, bool]]:
        return store.leases.in_hand(self.leftovers.holder, ids, using=self.plan.using)

    def report(self, ending: AttemptEnd) -> None:
        self.usage.count([ending])
        self.reporter.print_tasks([ending])

    def give_back(self, crashed: tuple[int, ...]) -> int:
        return store.upkeep.give_back(
            self.leftovers.holder,
            using=self.plan.using,
            alive_time=self.plan.options.ALIVE_TIME,
            loss=replace(self.loss, crashed=crashed),
        )


def prepare(handler: Handler, error: exceptions.TaskError) -> None:
    """Call the handler's hook for the error before its attempt is stored as ended."""
    try:
        if isinstance(handler, Application):
            handler.for_backoff(error)
    except Exception:
        logger.debug("A handler raised while it recorded an error.", exc_info=True)
