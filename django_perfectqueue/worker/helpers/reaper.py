"""The short-lived process that releases the tasks of a dead processor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from django_perfectqueue import logs, store
from django_perfectqueue.application import Application
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    PreemptedError,
    TaskError,
    TimeLimitError,
)
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import DISCARDED_GROUP, AcquiredTask

from ..attempt.ending import AttemptEnd, announce
from ..attempt.runner import about, ruling_for
from ..database.link import AwayError
from ..plan import Plan
from ..report import Reporter
from .base import HelperProcess

logger = logging.getLogger("django_perfectqueue.supervisor")
logger.addFilter(logs.Masked())

LAST_TRIES = 10.0
Handler = Application | type[Application] | None
TIMED_OUT = path_of(TimeLimitError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """
    The leases of a dead processor, and the tasks that crashed with it.

    ``overdue`` maps the tasks for which it was killed, since they ignored an interrupt, to
    their running time. ``seconds`` has the running times of all started tasks.
    """

    holder: int
    worker: str
    crashed: tuple[int, ...]
    why: store.Failure
    overdue: Mapping[int, float] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)


class Reaper(HelperProcess):
    """
    Releases the tasks of a dead processor before their leases expire, and settles those that
    were killed.

    It is a process of its own, so that the supervisor never waits for a database.
    """

    def __init__(self, plan: Plan, leftovers: Leftovers, reporter: Reporter) -> None:
        super().__init__(plan, parent_alive=-1)  # It waits only for the database.
        self.leftovers = leftovers
        self.reporter = reporter
        self.announcements: list[Callable[[], None]] = []
        self.endings: list[tuple[str, str, str, str]] = []

    def work(self) -> None:
        try:
            unclear = self.settle_overdue()
            crashed = (*self.leftovers.crashed, *unclear)
            lost = self.link.retry_until_done(lambda: self.held(crashed)) if crashed else []
            self.link.retry_until_done(lambda: self.give_back(crashed))
            self.report_crashed(lost)
            self.write_usage()
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
        error: TaskError
        if cancel:
            error = CancelRequestedError(f"Someone asked for it. {force}")
            word = "cancel requested"
        elif self.leftovers.overdue[lease.task_id] >= limit:
            error = TimeLimitError(f"Its time limit is {limit:g} s. {force}")
            word = "timed out"
        else:
            return False
        task = AcquiredTask(lease, worker=self.leftovers.worker)
        handler = self.handler_for(task)
        try:
            self.link.retry_until_done(lambda: prepare(handler, error))
            ending = self.link.retry_until_done(lambda: self.ending(task, handler, error))
            self.link.retry_until_done(lambda: self.end(task, ending))
        except PreemptedError:
            logger.warning(
                "A killed task had lost its lease. key=%s",
                printable(lease.key),
            )
        else:
            kind = handler if isinstance(handler, type) or handler is None else type(handler)
            self.count(lease, task.settled)
            self.announcements.append(partial(announce, task.settled, task, kind, error))
            logger.error(
                "A task was killed with its processor: %s, %s. key=%s type=%s",
                word,
                task.settled,
                printable(lease.key),
                printable(lease.type),
            )
            seconds = self.leftovers.overdue[lease.task_id]
            self.reporter.print_tasks([AttemptEnd(task.settled, task, kind, seconds, error=error)])
        return True

    def ending(self, task: AcquiredTask, handler: Handler, error: TaskError) -> store.Ending:
        """Return how the attempt ends: one that took too long by its handler's rules."""
        if isinstance(error, CancelRequestedError):
            return store.Ending.cancel(store.Failure(error="cancelled", message=str(error)))
        why = store.Failure(error=TIMED_OUT, message=str(error))
        with logs.about(task):
            what = ruling_for(task, handler, error)
        if what.word == "retry":
            return store.Ending.retry(what.wait, why)
        if what.word == "discard":
            letter = store.Failure(error=DISCARDED_GROUP, message=f"{TIMED_OUT}: {error}")
            return store.Ending.discard(why, letter)
        return store.Ending.fail(why)

    def end(self, task: AcquiredTask, ending: store.Ending) -> None:
        """End the attempt; raise PreemptedError where the lease has passed on."""
        lease, using = task.lease, self.plan.using
        words = store.settle(
            [lease],
            ending,
            seconds=self.leftovers.overdue[lease.task_id],
            using=using,
            worker=self.leftovers.worker,
        )
        if lease not in words:
            raise store.refusal(lease, using=using)
        task.settled = words[lease]

    def handler_for(self, task: AcquiredTask) -> Handler:
        """Return the handler for a task; an instance may have other rules than its class."""
        kind = self.plan.handler_for(task.lease)
        try:
            return None if kind is None else kind(task)
        except Exception:
            logger.debug("A handler can't be created. type=%s", printable(task.type), exc_info=True)
            return kind

    def held(self, ids: tuple[int, ...]) -> list[tuple[store.Lease, bool]]:
        return store.in_hand(self.leftovers.holder, ids, using=self.plan.using)

    def report_crashed(self, lost: list[tuple[store.Lease, bool]]) -> None:
        """Log and print the tasks that crashed."""
        for lease, _cancel in lost:
            task = AcquiredTask(lease, worker=self.leftovers.worker)
            self.count(lease, "crashed")
            logger.error("A task crashed: %s %s", self.leftovers.why.message, about(task))
            seconds = self.leftovers.seconds.get(lease.task_id, 0.0)
            self.reporter.print_tasks([AttemptEnd("crashed", task, None, seconds)])

    def count(self, lease: store.Lease, word: str) -> None:
        self.endings.append((lease.queue, lease.user, lease.type, word))

    def write_usage(self) -> None:
        """Count how the attempts ended; a failed write is lost."""
        if not self.endings or self.plan.options.USAGE_TIME == 0:
            return
        using, ended = self.plan.using, store.ended_so(self.endings)
        self.link.try_once(
            lambda: store.add_usage(ended, using=using, at=store.clock(using=using)),
            "The usage of a dead processor",
        )

    def give_back(self, crashed: tuple[int, ...]) -> int:
        return store.give_back(
            self.leftovers.holder,
            using=self.plan.using,
            alive_time=self.plan.options.ALIVE_TIME,
            loss=store.Loss(
                why=self.leftovers.why,
                worker=self.leftovers.worker,
                crashed=crashed,
                seconds=self.leftovers.seconds,
            ),
        )


def prepare(handler: Handler, error: TaskError) -> None:
    """Call the handler's hook for the error before its attempt is stored as ended."""
    try:
        if isinstance(handler, Application):
            handler.for_backoff(error)
    except Exception:
        logger.debug("A handler raised while it recorded an error.", exc_info=True)
