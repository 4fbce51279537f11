"""The processes beside the processors, from their supervisor's side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..helpers.reaper import Leftovers, Reaper
from ..plan import Plan
from ..process.child import Body, Child, Restarts
from ..report import Reporter
from .forks import Forks

logger = logging.getLogger("django_perfectqueue.supervisor")

LIMIT = 20.0


@dataclass(slots=True, eq=False)
class HelperSlot:
    """
    A helper of one kind, started anew whenever it has died.

    It is replaced later and later where it dies younger than ``limit`` seconds. A
    ``lasting`` one stays until the last processor has ended.
    """

    name: str
    body: Body
    limit: float
    lasting: bool = False
    child: Child | None = None
    restarts: Restarts = field(init=False)

    def __post_init__(self) -> None:
        self.restarts = Restarts(self.limit)

    def fill(self, fork: Callable[[str, Body], Child], now: float) -> None:
        """Start it if there is none, unless it is too early."""
        if self.child is not None or now < self.restarts.next_at:
            return
        try:
            self.child = fork(self.name, self.body)
        except OSError as error:
            logger.error("The %s can't be started. %s", self.name, error)
            self.restarts.postpone(now)

    def reap(self, reap: Callable[[Child], int | None], now: float) -> None:
        if self.child is None or (code := reap(self.child)) is None:
            return
        if code and not self.child.killed:
            logger.error("The %s died. code=%s", self.name, code)
        self.restarts.note_end(self.child, now)
        self.child = None


class Helpers:
    """The helpers of a supervisor, and the reapers of its dead processors."""

    def __init__(self, plan: Plan, reporter: Reporter, forks: Forks) -> None:
        self.slots: list[HelperSlot] = []
        self.plan = plan
        self.reporter = reporter
        self.forks = forks
        self.reapers: list[Child] = []

    def named(self) -> Iterator[tuple[str, Child]]:
        """Yield each helper that is alive, with its name."""
        yield from ((slot.name, slot.child) for slot in self.slots if slot.child is not None)
        yield from (("reaper", child) for child in self.reapers)

    def give_back(self, leftovers: Leftovers) -> None:
        """Have a process of its own give back what a dead processor has left."""

        # Made in the child: what it opens is closed when that ends.
        def reap_leftovers() -> int:
            return Reaper(self.plan, leftovers, self.reporter).run()

        try:
            self.reapers.append(self.forks.fork_helper("reaper", reap_leftovers))
        except OSError as error:
            logger.error("What it held comes back with its lease. %s", error)

    def reap(self, now: float) -> None:
        self.reapers = [child for child in self.reapers if self.forks.reap(child) is None]
        for slot in self.slots:
            slot.reap(self.forks.reap, now)

    def watch(self, now: float, *, frozen: bool) -> None:
        """End who stands still; say again to those that are to end that they are."""
        interval = self.plan.options.CHILD_KILL_INTERVAL
        for name, child in self.named():
            if frozen and child.pulse is not None:
                child.pulse.beat()
            silent = child.silence(now)
            if silent > self.plan.options.CHILD_HEARTBEAT_LIMIT and not child.killed:
                logger.error(
                    "The %s is silent; it is killed. pid=%s seconds=%.0f", name, child.pid, silent
                )
                child.kill()
            child.press(now, interval=interval, limit=LIMIT)

    def fill(self, now: float, *, only_lasting: bool) -> None:
        """Fork what is missing."""
        for slot in self.slots:
            if slot.lasting or not only_lasting:
                slot.fill(self.forks.fork_helper, now)

    def stop(self, *, lasting: bool = False) -> None:
        """Ask them to end; the ``lasting`` ones only where this says so."""
        for slot in self.slots:
            if slot.child is not None and (lasting or not slot.lasting):
                slot.child.stop()

    def are_gone(self) -> bool:
        return all(slot.child is None for slot in self.slots)
