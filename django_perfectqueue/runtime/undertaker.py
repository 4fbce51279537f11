"""The short-lived process that gives back what a dead processor held."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connections

from django_perfectqueue import store

from .bell import Bell
from .database import AwayError, Link
from .plan import Plan
from .signals import REOPEN_LOGS, take_signals
from .watch import Watch

LAST_TRIES = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estate:
    """What a processor has left: what it held, and the task it died of, if it did."""

    holder: int
    worker: str
    crashed: tuple[int, ...]
    why: store.Failure


class Undertaker:
    """
    Gives back at once what would else come back only with its lease.

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
            self.link.insist(self.give_back)
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

    def give_back(self) -> int:
        return store.give_back(
            self.estate.holder,
            using=self.plan.using,
            alive_time=self.plan.options.ALIVE_TIME,
            crashed=self.estate.crashed,
            worker=self.estate.worker,
            why=self.estate.why,
        )
