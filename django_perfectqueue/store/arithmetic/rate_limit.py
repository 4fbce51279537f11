"""How many tasks a limit lets start, and which limits a task keeps to: the arithmetic."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations

from django_perfectqueue.models import FAMILY, Limit

from .fair_order import lane_id

UNBOUNDED = 2**31
# In seconds: a wait for a lock may make a meter seem as much further ahead.
SLACK = 1.0


def opens_at(next_at: datetime, interval: float, burst: int) -> datetime:
    """
    Return when a rate lets the next task start, by when it would if all came evenly.

    A burst may come before that.
    """
    return next_at - timedelta(seconds=(burst - 1) * interval)


def is_too_far(ahead: float, interval: float, burst: int) -> bool:
    """Return whether a rate that was slower has left a meter further away than this one does."""
    return ahead > burst * interval + SLACK


@dataclass(slots=True)
class Allowance:
    """
    What a limit lets start now.

    ``interval`` is the seconds between starts that come evenly, and ``burst`` how many may
    come at once; an interval of 0 is no rate. ``ahead`` is how far in the future, in
    seconds after ``moment``, the next start lies that would come evenly: the theoretical
    arrival time of the generic cell rate algorithm (ATM Forum, Traffic Management 4.0,
    1996), which keeps a token bucket in a single time.
    """

    max_running: int | None
    interval: float
    burst: int
    paused: bool
    running: int
    ahead: float
    moment: datetime

    def __post_init__(self) -> None:
        self.ahead = max(self.ahead, 0.0)
        if is_too_far(self.ahead, self.interval, self.burst):
            self.ahead = (self.burst - 1) * self.interval

    @property
    def room(self) -> int:
        """How many more may start now."""
        if self.paused:
            return 0
        free = UNBOUNDED if self.max_running is None else self.max_running - self.running
        if self.interval:
            free = min(free, self.burst - math.ceil(self.ahead / self.interval - 1e-6))
        return max(0, free)

    @property
    def serves(self) -> bool:
        """Return whether it lets tasks start at all, now or once others have ended."""
        return not self.paused and self.max_running != 0

    @property
    def wait(self) -> float | None:
        """In how many seconds the rate lets one start; None where the clock changes nothing."""
        if self.paused or not self.interval:
            return None
        if self.max_running is not None and self.running >= self.max_running:
            return None
        return max(0.0, self.ahead - (self.burst - 1) * self.interval)

    def begin(self, count: int) -> None:
        self.running += count
        self.ahead += count * self.interval

    @property
    def next_at(self) -> datetime:
        """When the next start lies that would come evenly."""
        return self.moment + timedelta(seconds=self.ahead)


# Which limits a task keeps to, and by them its lane.


Keys = tuple[str, ...]

MOST_TRIED = 6


def key_of(scope: str, name: str) -> str:
    """Return what a limit is known by in gates and meters."""
    return f"{scope}:{name}"


def families(keys: Iterable[str]) -> list[str]:
    """Return those of these keys that are families, the longest first."""
    return sorted([key for key in keys if key.endswith(FAMILY)], key=len, reverse=True)


def governing(key: str, known: Container[str], families: Iterable[str]) -> str | None:
    """
    Return by which of the known limits a key is held, if it is: its own, or else the first
    family that covers it.
    """
    if key in known:
        return key
    return next((one for one in families if key.startswith(one[:-1])), None)


def covering(names: Iterable[str]) -> list[str]:
    """Return what families are called that cover one of these names."""
    return sorted({name[:end] + FAMILY for name in names for end in range(len(name) + 1)})


def named(names: Iterable[str]) -> set[str]:
    """Return the keys of the limits that a task lists."""
    return {key_of(Limit.Scope.NAME, name) for name in names}


def scoped(queue: str, type_: str, user: str) -> set[str]:
    """Return the keys of the limits that hold for a task, if there are such, unlisted."""
    return {
        key_of(Limit.Scope.QUEUE, queue),
        key_of(Limit.Scope.TYPE, type_),
        *([key_of(Limit.Scope.USER, user)] if user else []),
    }


def may_hold(queue: str, type_: str, user: str, names: Iterable[str]) -> set[str]:
    """Return the keys of all limits that hold for a task, if there are such."""
    return named(names) | scoped(queue, type_, user)


def standing(
    lane: int, queue: str, type_: str, user: str, names: Iterable[str]
) -> tuple[str, Keys]:
    """
    Return in whose line a task stands, and behind which limits.

    Who submitted it may have known another policy than we do, and other limits; so what
    it was follows from the lane's own hash.
    """
    for listed in subsets(sorted(named(names))):
        for more in subsets(sorted(scoped(queue, type_, user))):
            keys = tuple(sorted(listed | more))
            for owner in (user, ""):
                if lane_id(queue, owner, keys) == lane:
                    return owner, keys
    return "", ()


def subsets(values: list[str]) -> Iterator[set[str]]:
    """Yield all subsets; of many values only those with all, none or one of them."""
    few = len(values) <= MOST_TRIED
    for size in range(len(values), -1, -1):
        if few or size in (len(values), 1, 0):
            yield from map(set, combinations(values, size))


def split(text: str) -> list[str]:
    """Return the names in a column that has them with commas between."""
    return text.split(",") if text else []
