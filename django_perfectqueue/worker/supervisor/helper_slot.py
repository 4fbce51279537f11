"""The helper processes, as seen by their supervisor."""

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
    A helper of one kind, restarted whenever it dies.

    The pause before a restart grows while it dies younger than ``limit`` seconds. A
    ``lasting`` helper stays until the last processor has ended; a ``retired`` one never
    starts again.
    """

    name: str
    body: Body
    limit: float
    lasting: bool = False
    retired: bool = False
    child: Child | None = None
    restarts: Restarts = field(init=False)

    def __post_init__(self) -> None:
        self.restarts = Restarts(self.limit)

    def fill(self, fork: Callable[[str, Body], Child], now: float) -> None:
        """Start the helper if it is missing and its restart is due."""
        if self.child is not None or self.retired or now < self.restarts.next_at:
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
        self.statuses: list[HelperSlot] = []
        self.plan = plan
        self.reporter = reporter
        self.forks = forks
        self.reapers: list[Child] = []

    def named(self) -> Iterator[tuple[str, Child]]:
        """Yield each helper that is alive, with its name."""
        yield from (
            (status.name, status.child) for status in self.statuses if status.child is not None
        )
        yield from (("reaper", child) for child in self.reapers)

    def give_back(self, leftovers: Leftovers) -> None:
        """Fork a reaper for the leases of a dead processor."""

        # Created in the child, so that its descriptors are closed with it.
        def reap_leftovers() -> int:
            return Reaper(self.plan, leftovers, self.reporter).run()

        try:
            self.reapers.append(self.forks.fork_helper("reaper", reap_leftovers))
        except OSError as error:
            logger.error("No reaper can be started; tasks wait for their leases. %s", error)

    def reap(self, now: float) -> None:
        self.reapers = [child for child in self.reapers if self.forks.reap(child) is None]
        for status in self.statuses:
            status.reap(self.forks.reap, now)

    def watch(self, now: float, *, frozen: bool) -> None:
        """Kill helpers without a heartbeat; repeat stop signals."""
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
        """Fork missing helpers."""
        for status in self.statuses:
            if status.lasting or not only_lasting:
                status.fill(self.forks.fork_helper, now)

    def retire(self, name: str) -> None:
        """Stop the helper with this name for good."""
        for status in self.statuses:
            if status.name == name:
                status.retired = True
                if status.child is not None:
                    status.child.stop()

    def stop(self, *, lasting: bool = False) -> None:
        """Stop the helpers; with ``lasting`` also the lasting ones."""
        for status in self.statuses:
            if status.child is not None and (lasting or not status.lasting):
                status.child.stop()

    def are_gone(self) -> bool:
        return all(status.child is None for status in self.statuses)
