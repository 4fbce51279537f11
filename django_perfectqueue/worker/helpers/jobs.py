"""The jobs of a janitor: what is done how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P")

AT_ONCE = 0.0


@dataclass(slots=True)
class Job:
    """
    A piece of the upkeep, done ``every`` so many seconds, first at ``due_at`` by the
    monotonic clock.

    ``call`` does a batch of it. Where it returns a float, it is due again in so many seconds.
    After each call it rests at least ``rest`` times as long as that took.
    """

    name: str
    every: float
    call: Callable[[], object]
    due_at: float = 0.0
    rest: float = 0.0


class Scan(Generic[P]):
    """
    Calls ``batch`` with one position after another, and at the end from ``first`` on again.

    It returns the next position, or at the end ``first`` or None. Between two batches of a scan
    are ``pause`` seconds.
    """

    def __init__(self, batch: Callable[[P], P | None], first: P, pause: float = AT_ONCE) -> None:
        self.batch = batch
        self.first = self.position = first
        self.pause = pause

    def __call__(self) -> float | None:
        reached = self.batch(self.position)
        self.position = self.first if reached is None else reached
        return None if self.position == self.first else self.pause
