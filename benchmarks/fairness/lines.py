"""
The store's fair order in memory: the same arithmetic on lanes that are no rows.

What is computed comes from the package: who is next and what it is expected to cost
(``store/lanes.py``), and what a lane is charged (``store/accounts.py``). What is repeated
here are the steps of ``store/acquire.py`` and ``store/waking.py``, without a database.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from django_perfectqueue.store.arithmetic.fair_order import (
    ANY,
    FIRST_COST,
    SLOTS,
    Pick,
    UserLanes,
    counted,
    expected,
    lane_of,
    next_picks,
    unmeasured,
)
from django_perfectqueue.store.claims.acquire import ROUNDS
from django_perfectqueue.store.claims.lanes import LANES_READ_AT_LEAST
from django_perfectqueue.store.lanes.accounts import LAST, Accounts
from django_perfectqueue.store.values import Costs

QUEUES = itertools.count()


@dataclass(slots=True, eq=False)
class Task:
    """``ran`` is for how long it ran before it made way."""

    lane: int
    due: float
    seconds: float
    releases: int = 0
    ran: float = 0.0


@dataclass(slots=True, eq=False)
class Held:
    """
    A task in the hands of a processor; ``lost`` once its lease has lapsed. ``charged`` is
    what its lane was charged while it ran, if it was; ``ran`` is for how long it has run.
    """

    task: Task
    lane: int
    queue: str
    holder: int
    share: int
    charge: float
    finish_tag: float
    weight: float
    is_new: bool
    using: str = "simulated"
    lost: bool = False
    charged: float = 0.0
    ran: float = 0.0

    @property
    def user(self) -> str:
        return str(self.lane)


@dataclass(slots=True)
class Lane:
    """``advance`` is what its running tasks were charged when they were taken."""

    id: int
    weight: float
    max_running: int | None
    virtual_time: float = 0.0
    cost: float = 0.0
    running: int = 0
    finish_tag: float = 0.0
    exists: bool = False
    awake: bool = False
    paused: bool = False
    advance: float = 0.0
    since: int = 0
    waiting: deque[Task] = field(default_factory=deque)

    @property
    def turn(self) -> float:
        return self.virtual_time + abs(self.cost) / self.weight

    @property
    def open(self) -> bool:
        if self.paused:
            return False
        return self.awake and (self.max_running is None or self.running < self.max_running)

    @property
    def reached(self) -> float:
        """The virtual time without what was charged in advance, as REACHED has it."""
        return self.virtual_time - self.advance / self.weight

    def as_open(self, share: int, overrun: int | None, *, is_kept: bool) -> UserLanes:
        room = None if self.max_running is None else self.max_running - self.running
        in_use = overrun if overrun is not None else self.running if self.cost < 0 else -ANY
        return UserLanes(
            id=self.id,
            virtual_time=self.virtual_time,
            cost=self.cost,
            weight=self.weight,
            room=room,
            running=self.running,
            policy=SLOTS if is_kept else 0,
            share=share,
            spare=max(0, share - in_use) if share else ANY,
        )


class Lines:
    """All lanes of one queue, as the store keeps them between its transactions."""

    def __init__(self, shares: Sequence[tuple[float, int | None]]) -> None:
        self.lanes = [Lane(number, *share) for number, share in enumerate(shares)]
        self.turns: list[tuple[float, int, int]] = []
        self.marked: dict[int, int] = {}
        self.moments = itertools.count()
        self.queue = f"simulated {next(QUEUES)}"
        self.last: list[Lane] = []

    def submit(self, task: Task) -> None:
        """Let a task wait; where its lane sleeps, the next acquire wakes that."""
        lane = self.lanes[task.lane]
        lane.waiting.append(task)
        self.mark(lane)

    def mark(self, lane: Lane) -> None:
        if not lane.awake:
            self.marked.setdefault(lane.id, next(self.moments))

    def finish(self, ended: Iterable[tuple[Held, float | None]]) -> None:
        """Charge what was measured; None gives the charge back."""
        accounts = Accounts()
        self.end(accounts, ended)
        self.write(accounts)

    def release(self, held: Sequence[Held]) -> None:
        """Take tasks back that were not begun; they keep their places in line."""
        self.finish((one, None) for one in held)
        for one in reversed([one for one in held if not one.lost]):
            self.take_back(one)

    def give_up(self, held: Held) -> None:
        """Take back a task whose handler has run and then released it."""
        held.task.releases -= 1
        held.task.ran = 0.0
        self.make_way(held)

    def make_way(self, held: Held) -> None:
        """Take back a task that has run for a while, charged for that."""
        self.finish([(held, held.ran)])
        self.take_back(held)

    def charge(self, held: Held, ran: float) -> None:
        """Charge a task that runs, as ``store.charge()`` does."""
        if not held.lost:
            accounts = Accounts()
            accounts.overrun(held, ran, held.charged or None)
            held.charged = ran
            self.write(accounts)

    def lapse(self, held: Sequence[Held]) -> None:
        """Take tasks from holders whose leases have run out: they stay charged as expected."""
        accounts = Accounts()
        for one in reversed(held):
            accounts.lose(one.task.lane, reached=one.finish_tag)
            one.lost = True
        self.write(accounts)
        for one in reversed(held):
            self.take_back(one)

    def take_back(self, held: Held) -> None:
        lane = self.lanes[held.task.lane]
        lane.waiting.appendleft(held.task)
        self.mark(lane)

    def acquire(
        self,
        limit: int,
        ended: Iterable[tuple[Held, float | None]] = (),
        *,
        holder: int = 0,
        processors: int = 0,
        overrun: Mapping[int, int] = MappingProxyType({}),
        costs: Costs | None = None,
    ) -> list[Held]:
        """
        Take up to so many tasks, as ``store.finish_and_acquire()`` does.

        As there, the accounts of what has ended are written after the choice, but before
        it where a lane has to be woken first, or where others may wait for what has ended.
        """
        accounts = Accounts()
        ended = list(ended)
        self.end(accounts, ended)
        capped = any(self.is_capped(held) for held, _seconds in ended)
        if self.marked or capped:
            self.write(accounts)
            self.wake()
            accounts = Accounts()
        self.processors, self.overrun, self.costs = processors, overrun, costs
        taken = self.take(accounts, limit, holder)
        self.write(accounts)
        while not (taken or costs) and any(self.lanes[one[-1]].waiting for one in self.turns):
            accounts = Accounts()
            taken = self.take(accounts, limit, holder)
            self.write(accounts)
        return taken

    def is_capped(self, held: Held) -> bool:
        return self.lanes[held.task.lane].max_running is not None

    def take(self, accounts: Accounts, limit: int, holder: int) -> list[Held]:
        taken: list[Held] = []
        passed: set[int] = set()
        for _round in range(ROUNDS):
            lanes = self.next_lanes(max(limit - len(taken), LANES_READ_AT_LEAST), passed)
            missing = limit - len(taken)
            weights = sum(lane.weight for lane in lanes)
            open_ = [
                lane.as_open(
                    math.ceil(self.processors * lane.weight / weights - 1e-9),
                    self.overrun.get(self.account(lane.id)),
                    is_kept=self.costs is not None,
                )
                for lane in lanes
            ]
            known = (lane.cost for lane in open_ if not lane.is_new)
            new = expected("simulated", self.queue, holder)
            usual = new or accounts.mean() or next(known, FIRST_COST)
            picks = next_picks(open_, missing, holder=holder, usual=usual, serial=True)
            if not picks:
                break
            alone = len(lanes) == 1 and not passed
            taken += self.serve(accounts, picks, missing, holder, alone=alone)
            if taken and sum(pick.count for pick in picks) < missing:
                break
            short = accounts.short & {lane.id for lane in lanes}
            passed |= short | {lane.id for lane in lanes if lane.max_running is not None}
            if not short or len(taken) >= limit:
                break
        return taken

    def account(self, lane: int) -> int:
        """Return by which number a worker knows a lane: where that is odd, not by its own."""
        return lane_of(self.queue, str(lane)) if lane & 1 else lane

    def next_lanes(self, limit: int, passed: set[int]) -> list[Lane]:
        if self.costs is not None:
            return self.short_lanes(self.costs)[:limit]
        found = []
        for *_turn, number in self.turns:
            if number not in passed:
                found.append(self.lanes[number])
                if len(found) == limit:
                    break
        return found

    def short_lanes(self, costs: Costs) -> list[Lane]:
        """Return those for which a processor is kept, the one served longest ago first."""
        lanes = [self.lanes[number] for *_turn, number in self.turns]
        short = [lane for lane in lanes if costs[0] < lane.cost < costs[1] and lane.waiting]
        short = [lane for lane in short if self.account(lane.id) not in self.overrun]
        return sorted(short, key=lambda lane: lane.since)

    def comes_first(self, held: Held) -> bool:
        """Return whether another lane with tasks has its turn before that of a running task."""
        self.wake()
        own = self.lanes[held.task.lane]
        lanes = [self.lanes[number] for turn, _since, number in self.turns if turn < own.turn]
        return any(lane.waiting and lane is not own for lane in lanes)

    def serve(
        self, accounts: Accounts, picks: Sequence[Pick], limit: int, holder: int, *, alone: bool
    ) -> list[Held]:
        """Take up to so many of what was picked; a lane that has less falls asleep."""
        left = limit
        for number, count in counted(picks).items():
            has = min(count, len(self.lanes[number].waiting))
            left -= has
            if left <= 0:
                break
            if has < count and not alone:
                accounts.found_short(number)
        taken: list[Held] = []
        for pick in picks:
            lane = self.lanes[pick.lane]
            some = min(pick.count, len(lane.waiting), limit - len(taken))
            if some:
                accounts.begin(lane.id, pick.cost, some)
            for _ in range(some):
                what = (pick.share, pick.cost, pick.finish_tag, pick.weight, pick.is_new)
                taken.append(Held(lane.waiting.popleft(), lane.id, self.queue, holder, *what))
        return taken

    def end(self, accounts: Accounts, ended: Iterable[tuple[Held, float | None]]) -> None:
        for held, seconds in ended:
            if not held.lost:
                accounts.end(held, seconds, held.charged or None)

    def write(self, accounts: Accounts) -> None:
        """Charge the lanes, and put to sleep those that were found empty."""
        moment = next(self.moments)
        for number, account in accounts.lanes.items():
            lane, entry = self.lanes[number], account.entry(number)
            self.strike(lane)
            lane.since = moment if entry.served else lane.since
            lane.finish_tag = max(lane.finish_tag, entry.finish_tag)
            if 0.0 < entry.finish_tag == max(one.finish_tag for one in [lane, *self.last]):
                self.last = [lane, *(one for one in self.last if one is not lane)][:LAST]
            if entry.lost:
                lane.advance *= 1.0 - entry.lost / lane.running
            lane.running += entry.running
            lane.advance = max(0.0, lane.advance + entry.advance) if lane.running > 0 else 0.0
            lane.virtual_time += entry.seconds / lane.weight
            if lane.cost < 0 and entry.keep < 1:
                lane.cost = entry.mean
            else:
                lane.cost = lane.cost * entry.keep + entry.mean * (1 - entry.keep)
            if account.least_cost:
                lane.cost = max(lane.cost, account.least_cost)
            if number in accounts.short and not lane.waiting:
                lane.awake = False
            self.enter(lane)

    def wake(self) -> None:
        """
        Wake the marked lanes, each at the virtual time of the queue, or where it was if
        that is later.
        """
        virtual_time = self.floor()
        for number, since in self.marked.items():
            lane = self.lanes[number]
            self.strike(lane)
            if not lane.exists:
                lane.exists = True
                lane.cost = unmeasured(lane.weight, self.usual())
            if not lane.awake:
                lane.awake = True
                lane.since = since
                lane.virtual_time = max(lane.virtual_time, virtual_time)
            self.enter(lane)
        self.marked.clear()

    def usual(self) -> float:
        costs = [lane.cost for lane in self.last if lane.cost > 0]
        return sum(costs) / len(costs) if costs else 0.0

    def floor(self) -> float:
        if self.turns:
            return max(self.clock, self.lanes[self.turns[0][2]].reached)
        reached = max([lane.virtual_time for lane in self.lanes if lane.exists], default=0.0)
        return max(self.clock, round(reached, 3))

    @property
    def clock(self) -> float:
        return max([min(lane.finish_tag, lane.reached) for lane in self.last], default=0.0)

    def pause(self, number: int) -> None:
        """Pause a user, or let it go on where it is paused: at the place of one that wakes."""
        lane = self.lanes[number]
        self.strike(lane)
        lane.paused = not lane.paused
        if not lane.paused:
            lane.virtual_time = max(lane.virtual_time, self.floor())
        self.enter(lane)

    def strike(self, lane: Lane) -> None:
        if lane.open:
            del self.turns[bisect.bisect_left(self.turns, (lane.turn, lane.since, lane.id))]

    def enter(self, lane: Lane) -> None:
        if lane.open:
            bisect.insort(self.turns, (lane.turn, lane.since, lane.id))
