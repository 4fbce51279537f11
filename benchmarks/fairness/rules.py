"""
The published rules of other queues on the same arrivals, without a database and without waiting.

Each rule says which user is served next. All else is free: a task starts the moment a processor
is, nothing is fetched ahead, and no rule pays for what it looks at.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from .audit import Run
from .scenario import Followers, Scenario, arrivals

NOISY = 0.1
NOISY_IN_FLIGHT = 30
RECENT = 60.0
OURS = "by measured time"
# What --rules plays where no scenarios are named.
SHOWN = (
    *("ten-lengths", "light-beside-heavy", "one-against-50", "overrun"),
    *("newcomers-for-ever", "weights-1-3"),
)


@dataclass(slots=True)
class Lane:
    """What a rule may know of a user: what waits, what runs, and what it has been given."""

    user: str
    weight: float
    waiting: deque[tuple[tuple[float, int], float]] = field(default_factory=deque)
    """When each task was due, with its number among all, and how long it takes."""
    running: int = 0
    served_at: int = 0
    tag: float = 0.0
    recent: float = 0.0
    """Seconds that ran of late: what is a minute old counts 1/e."""

    @property
    def due(self) -> tuple[float, int]:
        return self.waiting[0][0]


class Desk:
    """Lanes, the virtual clock of those who count dispatches, and what runs of late."""

    def __init__(self, lanes: dict[str, Lane]) -> None:
        self.lanes = lanes
        self.clock = 0.0
        self.number = 0
        self.seen = 0.0

    def pass_time(self, now: float) -> None:
        old, self.seen = self.seen, now
        for lane in self.lanes.values():
            lane.recent = lane.recent * (1 - min(1.0, (now - old) / RECENT))
            lane.recent += lane.running * (now - old)

    def in_flight(self) -> int:
        return sum(lane.running for lane in self.lanes.values())

    def serve(self, lane: Lane) -> tuple[tuple[float, int], float]:
        """Let the oldest task of a lane begin; return when it was due and how long it takes."""
        self.number += 1
        self.clock = max(self.clock, lane.tag)
        lane.tag = max(lane.tag, self.clock) + 1 / lane.weight
        lane.running, lane.served_at = lane.running + 1, self.number
        return lane.waiting.popleft()


Waiting = list[Lane]
Choose = Callable[[Desk, Waiting], "Lane | None"]


def oldest(desk: Desk, waiting: Waiting) -> Lane | None:
    """Celery, RQ, django-tasks-db and most queues."""
    return min(waiting, key=lambda lane: lane.due)


def round_robin(desk: Desk, waiting: Waiting) -> Lane | None:
    """Hatchet, GROUP_ROUND_ROBIN: docs.hatchet.run/v1/concurrency."""
    return min(waiting, key=lambda lane: (lane.served_at, lane.due))


def by_dispatches(desk: Desk, waiting: Waiting) -> Lane | None:
    """Temporal, fairness keys: docs.temporal.io/develop/task-queue-priority-fairness."""
    return min(waiting, key=lambda lane: (max(lane.tag, desk.clock), lane.due))


def by_slots(desk: Desk, waiting: Waiting) -> Lane | None:
    """Fewest running tasks by weight, as cluster schedulers do."""
    return min(waiting, key=lambda lane: (lane.running / lane.weight, lane.due))


def quiet_first(desk: Desk, waiting: Waiting) -> Lane | None:
    """
    Amazon SQS fair queues: docs.aws.amazon.com, SQSDeveloperGuide/sqs-fair-queues-detailed.

    Recent is a minute here; SQS does not say how long it is.
    """
    in_flight = desk.in_flight()
    total = sum(lane.recent for lane in desk.lanes.values())

    def is_noisy(lane: Lane) -> bool:
        many = lane.running >= NOISY_IN_FLIGHT and lane.running > NOISY * in_flight
        return many or lane.recent > NOISY * total

    return min(waiting, key=lambda lane: (is_noisy(lane), lane.due))


def capped(limit: int) -> Choose:
    """Oban Pro, global_limit by partition; Inngest, concurrency by key."""

    def choose(desk: Desk, waiting: Waiting) -> Lane | None:
        free = [lane for lane in waiting if lane.running < limit * lane.weight]
        return min(free, key=lambda lane: lane.due) if free else None

    return choose


RULES: dict[str, Choose] = {
    "first in, first out": oldest,
    "round robin": round_robin,
    "by dispatches": by_dispatches,
    "quiet first": quiet_first,
    "a cap of 1": capped(1),
    "a cap of 2": capped(2),
    "by slots": by_slots,
}


def played(choose: Choose) -> Callable[[Scenario, int], tuple[list[Run], float]]:
    """Return what computes a scenario by a rule: what became of each task, and when that ended."""
    return lambda scenario, processors: Play(scenario, processors, choose).run()


class Play:
    """A scenario, so many processors, and the rule that says whose task begins next."""

    def __init__(self, scenario: Scenario, processors: int, choose: Choose) -> None:
        self.scenario, self.choose, self.free = scenario, choose, processors
        self.followers = Followers(scenario)
        self.lanes = {user: Lane(user, group.weight) for user, group in scenario.owners().items()}
        self.desk = Desk(self.lanes)
        self.number = itertools.count()
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.runs: list[Run] = []
        coming = arrivals(scenario, processors)
        random.Random(scenario.seed).shuffle(coming)  # what comes at once comes in any order
        for one in sorted(coming, key=attrgetter("at")):
            self.at(one.at, functools.partial(self.come, one.user, one.seconds))
        self.followers.first()

    def at(self, moment: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (moment, next(self.number), act))

    def run(self) -> tuple[list[Run], float]:
        end, most, now = self.scenario.seconds, self.scenario.tasks, 0.0
        while self.events and len(self.runs) != most:
            now = min(self.events[0][0], end)
            if self.events[0][0] > end:
                break
            self.desk.pass_time(now)
            while self.events and self.events[0][0] <= now:
                heapq.heappop(self.events)[2](now)
            self.begin(now)
        left = [
            Run(lane.user, due, None, None, seconds)
            for lane in self.lanes.values()
            for (due, _number), seconds in lane.waiting
        ]
        return [*self.runs, *left], now

    def come(self, user: str, seconds: float, now: float) -> None:
        self.lanes[user].waiting.append(((now, next(self.number)), seconds))

    def begin(self, now: float) -> None:
        """Give each free processor the next task."""
        while self.free and (waiting := [lane for lane in self.lanes.values() if lane.waiting]):
            lane = self.choose(self.desk, waiting)
            if lane is None or len(self.runs) == self.scenario.tasks:
                return
            (due, _number), seconds = self.desk.serve(lane)
            self.free -= 1
            self.runs.append(Run(lane.user, due, now, now + seconds, seconds))
            self.at(now + seconds, functools.partial(self.end, lane))

    def end(self, lane: Lane, now: float) -> None:
        lane.running -= 1
        self.free += 1
        if next_one := self.followers.after(lane.user, now):
            self.come(next_one.user, next_one.seconds, now)
