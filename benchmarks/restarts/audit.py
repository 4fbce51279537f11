"""Whether restarts went unnoticed, from the history of what processors did."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

ACQUIRED, BEGAN, ENDED = "acquired", "began", "ended"
FIRST_SECONDS = 1.0
"""How much of the time before the restarts is left out: caches fill, paces are found."""


class Event(NamedTuple):
    """What a processor did; ``at`` is in seconds of the recorder's clock."""

    at: float
    pid: int
    event: str
    task: int = 0


@dataclass(frozen=True)
class Restart:
    """When it was asked for, and when the new generation had taken over."""

    asked: float
    done: float


def audited(
    events: Sequence[Event], restarts: Sequence[Restart], *, submitted: int, began: float
) -> dict[str, Any]:
    """Return the figures of a run; the restarts are those that have been done."""
    first, last = restarts[0].asked, restarts[-1].done
    begins = Counter(event.task for event in events if event.event == BEGAN)
    ends = [event for event in events if event.event == ENDED]
    acquires = sorted(event.at for event in events if event.event == ACQUIRED)
    before = per_second(ends, began + FIRST_SECONDS, first)
    during = per_second(ends, first, last)
    usual = statistics.median(before)
    took = [one.done - one.asked for one in restarts]
    return {
        "restarts": len(restarts),
        "tasks": submitted,
        "lost": submitted - len({event.task for event in ends}),
        "twice": sum(count - 1 for count in begins.values()),
        "unattended": longest(uncovered(tenures(events), first, last)),
        "between": longest(pairwise(within(acquires, first, last))),
        "between_before": longest(pairwise(within(acquires, began, first))),
        "usual": usual,
        "lowest_before": min(before),
        "lowest": min(during),
        "median": statistics.median(during),
        "lowest_part": min(during) / usual,
        "took": statistics.median(took),
        "took_longest": max(took),
        "seconds": last - first,
    }


def tenures(events: Iterable[Event]) -> list[tuple[float, float]]:
    """
    Return from when to when each processor was there to acquire.

    That is from its first acquire until it last acquired, or ended a task: one that is asked
    to stop ends at most the task that it is running, of some 20 ms.
    """
    found: dict[int, tuple[float, float]] = {}
    for event in sorted(events, key=lambda one: one.at):
        if event.event == ACQUIRED or event.pid in found:
            since, _until = found.get(event.pid, (event.at, event.at))
            found[event.pid] = (since, event.at)
    return sorted(found.values())


def uncovered(
    spans: Iterable[tuple[float, float]], first: float, last: float
) -> list[tuple[float, float]]:
    """Return the parts of the time from first to last that no span covers."""
    gaps, reached = [], first
    for since, until in sorted(spans):
        if since > reached:
            gaps.append((reached, min(since, last)))
        reached = max(reached, until)
        if reached >= last:
            return gaps
    return [*gaps, (reached, last)]


def within(moments: Iterable[float], first: float, last: float) -> list[float]:
    return [moment for moment in moments if first <= moment <= last]


def longest(spans: Iterable[tuple[float, float]]) -> float:
    return max((until - since for since, until in spans), default=0.0)


def per_second(ends: Iterable[Event], first: float, last: float) -> list[int]:
    """Return how many tasks ended in each whole second from first to last."""
    counts = [0] * max(1, int(last - first))
    for event in ends:
        second = int((event.at - first) // 1)
        if 0 <= second < len(counts):
            counts[second] += 1
    return counts
