"""The short-lived process that gives back what a dead processor held."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import connections

from django_perfectqueue import logs, store
from django_perfectqueue.application import Application
from django_perfectqueue.application.decider import wait_after_error
from django_perfectqueue.exceptions import PreemptedError, TimeLimitError
from django_perfectqueue.queue import AcquiredTask

from .bell import Bell
from .database import AwayError, Link
from .plan import Plan
from .signals import REOPEN_LOGS, take_signals
from .watch import Watch

logger = logging.getLogger("django_perfectqueue.supervisor")
logger.addFilter(logs.Masked())

LAST_TRIES = 10.0
TIMED_OUT = f"{TimeLimitError.__module__}.{TimeLimitError.__qualname__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estate:
    """
    What a processor has left: what it held, and the tasks it died of, if it did.

    ``overdue`` are the tasks for which it was killed, as they did not end when told to, with
    the seconds for which they had run.
    """

    holder: int
    worker: str
    crashed: tuple[int, ...]
    why: store.Failure
    overdue: Mapping[int, float] = field(default_factory=dict)


class Undertaker:
    """
    Gives back at once what would else come back only with its lease, and settles what was
    ended by force.

    It is a process of its own, so that the supervisor never waits for a database.
    """

    def __init__(self, plan: Plan, estate: Estate) -> None:
        self.plan = plan
        self.estate = estate
        self.bell = Bell()
        self.stopping = False
        self.link = Link(plan.using, self.bell, self.patience, outage=plan.outage)
        self.watch = Watch([self.link], plan.timeout)

    def run(self) -> int:
        take_signals(self.on_signal)
        self.watch.start()
        try:
            unclear = self.settle_overdue()
            self.link.insist(lambda: self.give_back(unclear))
        except AwayError:
            return 0
        connections.close_all()
        return 0

    def on_signal(self, signum: int, frame: object) -> None:
        if signum != REOPEN_LOGS:
            self.stopping = True
            self.bell.ring()

    def patience(self) -> float:
        """Try as long as it is of use: then the leases have run out."""
        return LAST_TRIES if self.stopping else self.plan.options.ALIVE_TIME

    def settle_overdue(self) -> tuple[int, ...]:
        """Write what becomes of what was ended by force; return what was not for either reason."""
        if not self.estate.overdue:
            return ()
        holder, ids = self.estate.holder, self.estate.overdue
        found = self.link.insist(lambda: store.in_hand(holder, ids, using=self.plan.using))
        return tuple(lease.task_id for lease, cancel in found if not self.settle(lease, cancel))

    def settle(self, lease: store.Lease, cancel: bool) -> bool:
        """Write what its handler would have written; tell whether that is known."""
        limit, wait = self.plan.time_limits(lease)
        force = f"It had not ended {wait:g} s after it was told to, so its processor was killed."
        if cancel:
            word, verb = "cancelled", self.cancelling(lease, force)
        elif self.estate.overdue[lease.task_id] >= limit:
            word, verb = (
                "timed out",
                self.timing_out(lease, f"Its time limit is {limit:g} s. {force}"),
            )
        else:
            return False
        try:
            self.link.insist(verb)
        except PreemptedError:
            logger.warning("A task was taken away before it was ended by force. key=%s", lease.key)
        else:
            logger.error(
                "A task was ended by force: %s. key=%s type=%s", word, lease.key, lease.type
            )
        return True

    def cancelling(self, lease: store.Lease, force: str) -> Callable[[], object]:
        why = store.Failure(error="cancelled", message=f"Someone asked for it. {force}")
        return lambda: store.cancel(lease, why=why, **self.terms(lease))

    def timing_out(self, lease: store.Lease, message: str) -> Callable[[], object]:
        """Count an error, and have it tried again by its handler's rules, or fail it."""
        why = store.Failure(error=TIMED_OUT, message=message)
        wait = self.wait_after(lease)
        if wait is None:
            return lambda: store.fail(lease, why=why, **self.terms(lease))
        return lambda: store.retry(lease, wait=wait, why=why, **self.terms(lease))

    def wait_after(self, lease: store.Lease) -> float | None:
        """Return what its handler's rules say, or where these raise those of the settings."""
        task = AcquiredTask(lease)
        with logs.about(task):
            try:
                return wait_after_error(task, self.handler_for(lease))
            except Exception:
                logger.exception("A handler's rules raised. key=%s type=%s", lease.key, lease.type)
                return wait_after_error(task)

    def handler_for(self, lease: store.Lease) -> Application | type[Application] | None:
        """Return the handler of a task: made for it, it may have other rules than its class."""
        kind = self.plan.handler_for(lease)
        try:
            return None if kind is None else kind(AcquiredTask(lease))
        except Exception:
            logger.debug("A handler can't be made. type=%s", lease.type, exc_info=True)
            return kind

    def terms(self, lease: store.Lease) -> dict[str, Any]:
        return {
            "seconds": self.estate.overdue[lease.task_id],
            "using": self.plan.using,
            "worker": self.estate.worker,
        }

    def give_back(self, unclear: tuple[int, ...]) -> int:
        return store.give_back(
            self.estate.holder,
            using=self.plan.using,
            alive_time=self.plan.options.ALIVE_TIME,
            crashed=(*self.estate.crashed, *unclear),
            worker=self.estate.worker,
            why=self.estate.why,
        )
