"""A process beside the processors, from its supervisor's side."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ..process.child import Body, Child, next_fork

logger = logging.getLogger("django_perfectqueue.supervisor")

LIMIT = 20.0


@dataclass(slots=True, eq=False)
class Helper:
    """
    One of its kind, started anew whenever it has died.

    ``limit`` is in seconds: who dies younger than that is replaced later and later. One
    that is ``lasting`` stays until the last processor has ended.
    """

    name: str
    body: Body
    limit: float
    lasting: bool = False
    child: Child | None = None
    deaths: int = 0
    fork_at: float = 0.0

    def fill(self, fork: Callable[[str, Body], Child], now: float) -> None:
        """Start it if there is none, unless it is too early."""
        if self.child is not None or now < self.fork_at:
            return
        try:
            self.child = fork(self.name, self.body)
        except OSError as error:
            logger.error("The %s can't be started. %s", self.name, error)
            self.fork_at = now + max(1.0, self.limit)

    def reap(self, now: float) -> None:
        if self.child is None or (code := self.child.reap()) is None:
            return
        if code and not self.child.killed:
            logger.error("The %s died. code=%s", self.name, code)
        early = now - self.child.born < self.limit
        self.deaths = self.deaths + 1 if early else 1
        self.fork_at = next_fork(self.child.born, deaths=self.deaths, limit=self.limit)
        self.child = None

    def press(self, now: float, *, interval: float) -> None:
        if self.child is not None:
            self.child.press(now, interval=interval, limit=LIMIT)
