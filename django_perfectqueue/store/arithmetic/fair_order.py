"""Who is next: the arithmetic of the fair order, with no database in sight."""

from __future__ import annotations

import functools
import hashlib
import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from django_perfectqueue.conf import options
from django_perfectqueue.models import Policy

LEAST_COST = 1e-4
MEMORY = 0.75
QUANTUM = 0.002
# Where each write to an account makes all later reads of it slower.
LARGE_QUANTUM = 0.05
# By what cost a lane takes its place that was never measured, if its weight is not small.
FIRST_COST = QUANTUM

HOLDERS = 1_000

# What the first tasks of new users cost, as each holder has measured it.
measured: OrderedDict[tuple[str, str, int], float] = OrderedDict()

SLOTS = Policy.SLOTS.value
LANES_PROBED = 500
CHOICE = 5
ANY = 1 << 30
SERIAL_PART = 4
NONE: dict[str, int] = {}


# Whether a user is beyond its share; the key and rank of its next task; its position among
# the users, what a task costs, how many were taken and how many are taken at once, and a taste.
Turn = tuple[bool, float, float, int, float, int, int, int | None]


@dataclass(slots=True)
class LaneHead:
    """
    One lane of a user, and the keys of the limits to which its tasks keep.

    ``tickets`` are its first ones as they sort; where they are not known it has enough.
    """

    lane: int
    keys: Sequence[str] = ()
    tickets: list[tuple[float, ...]] | None = None
    served: int = 0

    @property
    def is_spent(self) -> bool:
        return self.tickets is not None and self.served >= len(self.tickets)

    def take(self, rooms: MutableMapping[str, int], count: int) -> int:
        """Begin so many tasks, or as many as its limits let start; return how many."""
        keys = [key for key in self.keys if key in rooms]
        some = min([count, *[rooms[key] for key in keys]])
        for key in keys:
            rooms[key] -= some
        self.served += some
        return some


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLanes:
    """
    A user that may be served, and by which policy. ``room`` is how many more tasks may run;
    None is any number. Where none was ever measured ``cost`` is negative: see ``unmeasured()``.
    ``share`` is how many processors it may use where others wait and it is not known how long
    its tasks take; ``spare`` is how many more that is, ANY where it is known. Tasks beyond
    these come after those of all others. ``heads`` are its lanes; with none it has only the
    one without limits.
    """

    id: int
    virtual_time: float
    cost: float
    weight: float
    room: int | None
    running: int = 0
    policy: int = 0
    share: int = 0
    spare: int = ANY
    heads: Sequence[LaneHead] = ()

    def key(self, number: int, cost: float) -> tuple[float, float]:
        """
        Return the key of its n-th next task, where each is expected to cost so much: of
        all accounts the smallest is served first. The column ``turn`` is that of the first.

        FAIR is the smallest virtual finish time: weighted fair queueing (Demers, Keshav and
        Shenker, 1989) on expected costs, which measured ones correct when the tasks end.
        SLOTS is the most weight for each slot that it would have: the highest averages of
        D'Hondt, as in PerfectQueue. What ran earlier counts for nothing.
        """
        if self.policy == SLOTS:
            return round((self.running + number) / self.weight, 9), -1 / self.weight
        step = cost / self.weight
        return round(self.virtual_time + step * number, 9), -step

    @property
    def is_new(self) -> bool:
        """Whether none of its tasks was ever measured."""
        return self.cost < 0

    def charge(self, usual: float) -> float:
        """Return what each of its tasks is charged; what is usual where none was measured."""
        return max(usual if self.cost < 0 else self.cost, LEAST_COST)

    def first(self, cost: float) -> float:
        """Return by what cost it takes its place; one that was never measured by no large one."""
        return min(cost, -self.cost) if self.cost < 0 else cost

    def pick(self, cost: float, taken: int, count: int, lane: int | None = None) -> Pick:
        """Pick so many tasks of a lane behind those taken before, each charged this cost."""
        tag = 0.0
        if self.policy != SLOTS:
            tag = self.virtual_time + cost * (taken + count) / self.weight
        lane = self.id if lane is None else lane
        capped = self.room is not None or bool(lane & 1)
        return Pick(lane, cost, count, tag, self.cost < 0, self.share, capped, self.weight)

    def serve(
        self, rooms: MutableMapping[str, int], cost: float, taken: int, count: int
    ) -> list[Pick]:
        """Pick the next so many tasks of all its lanes, or as many as limits let start."""
        if not self.heads:
            return [self.pick(cost, taken, count)]
        lanes: list[int] = []
        while len(lanes) < count and (head := self.next_head(rooms)):
            some = head.take(rooms, count - len(lanes) if head.tickets is None else 1)
            lanes += [head.lane] * some
        picks = []
        for lane, same in groupby(lanes):
            some = len(list(same))
            picks.append(self.pick(cost, taken, some, lane))
            taken += some
        return picks

    def next_head(self, rooms: Mapping[str, int]) -> LaneHead | None:
        """Return the lane whose first ticket is next, of those that no limit holds back."""
        waiting = [
            head
            for head in self.heads
            if not head.is_spent and min([1, *[rooms.get(key, 1) for key in head.keys]]) > 0
        ]
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        return min(waiting, key=lambda head: (head.tickets or [])[head.served])

    @property
    def is_spent(self) -> bool:
        """Return whether its lanes are known to have no more tickets."""
        return not [head for head in self.heads if not head.is_spent]

    @property
    def lanes(self) -> list[int]:
        """Return its lanes: without limits it has one, which has its id."""
        return [head.lane for head in self.heads] or [self.id]


@dataclass(frozen=True, slots=True)
class Pick:
    """
    Tasks to be taken from a lane in a row, and what each is expected to cost, in seconds.

    ``finish_tag`` is the virtual time that the lane will have reached with the last of
    them, 0.0 where the policy keeps none; ``is_new`` means that none of its tasks was ever
    measured. ``share`` and ``weight`` are those of the lane; ``capped`` means that it has a cap or
    limits.
    """

    lane: int
    cost: float
    count: int = 1
    finish_tag: float = 0.0
    is_new: bool = False
    share: int = 0
    capped: bool = False
    weight: float = 1.0


def unmeasured(weight: float, usual: float) -> float:
    """
    Return the cost of a lane of whose tasks nothing is known, below 0.

    It takes its place by a small cost, so that its first task comes soon: before those of
    the others in its round. With a weight below 1 that would be many rounds too early,
    and it takes its place by what tasks usually cost.
    """
    return -max(FIRST_COST, usual if weight < 1 else 0.0)


def lane_id(queue: str, user: str, keys: Sequence[str] = ()) -> int:
    """
    Return the lane of a user in a queue, for the tasks that keep to these limits: 63 bits
    of a hash, and one bit: whether there are any.

    So a ticket can name its lane without a look-up. Among a million lanes two share an
    id with a probability of 5e-8; they would then share one turn.
    """
    if not keys:
        return hashed(queue, user) & ~1
    return hashed(queue, user, *keys) | 1


def lane_of(queue: str, user: str, keys: Sequence[str] = ()) -> int:
    """Return the lane in which a user's tasks wait by the policy of the queue."""
    return lane_id(queue, "" if rule_of(queue).one_line else user, keys)


def gate_id(queue: str, keys: Sequence[str]) -> int:
    """Return the gate of a set of limits in a queue; 0 for none."""
    return hashed(queue, *keys) | 1 if keys else 0


def is_gated(lane: int) -> bool:
    """Return whether the tasks of a lane keep to limits."""
    return bool(lane & 1)


@functools.lru_cache(maxsize=10_000)
def hashed(*names: str) -> int:
    digest = hashlib.blake2b("\x00".join(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def turn_of(own: Any) -> float:
    """Return the turn of an account, or of a row of its columns, whether it is ready or not."""
    if own.policy == SLOTS:
        return float((own.running + 1.0) / own.weight)
    return float(own.virtual_time + abs(own.cost) / own.weight)


def next_picks(
    users: Sequence[UserLanes],
    count: int,
    *,
    holder: int,
    usual: float = FIRST_COST,
    serial: bool = False,
    quantum: float = QUANTUM,
    rooms: MutableMapping[str, int] = NONE,
) -> list[Pick]:
    """
    Return whom to serve, in order: always the account whose next task has the smallest key,
    by its policy, and of equals the one whose turns are fewer, and then the first given.
    Within its lanes the tasks go by priority and age; what a limit holds back is passed over,
    and holds back nothing else. ``rooms`` is how many each limit lets start, and is counted
    down.

    Where the policy goes by time, very short tasks are served a ``quantum`` of seconds at a
    time, as in deficit round robin (Shreedhar and Varghese, 1995), so that a batch writes
    to few accounts. Among such lanes a quantum more or less is no matter, and each holder
    has its own order: so two that look at once choose different ones.

    A lane that was never measured takes its place by FIRST_COST, but is charged what is
    ``usual``: its first task comes soon, and not all of them.

    With ``serial`` they are run one after another. Then no more is taken of a lane with a
    cap than leaves room for others, who could run it at the same time; and they end where
    it would have its next turn, so that it is had as soon as the holder has come there.

    What is beyond the ``spare`` of a lane comes behind all that is not.

    Behind ``count`` tasks come the first of the lanes that have not had a turn, for where
    the others turn out to have less than was picked.
    """
    turns = first_turns(users, usual, holder, quantum)
    picks: list[Pick] = []
    missing = count
    while turns and missing:
        _late, _key, _rank, position, cost, taken, size, taste = turns[0]
        user = users[position]
        room = count if user.room is None else part_of(user.room, serial) - taken
        if not room:
            return picks
        spare = user.spare - taken if taken < user.spare else missing
        wanted = min(size, room, missing, spare)
        served = user.serve(rooms, cost, taken, wanted)
        some = sum([pick.count for pick in served])
        if serial and taken and not some and not user.is_spent:
            # What it has taken in this batch holds it back until that has ended.
            return picks
        picks += served
        missing -= some
        taken += some
        if (serial and some) or wanted == some < room:
            key = place(user, taken + 1, cost, taste, quantum)
            heapq.heapreplace(
                turns, (taken >= user.spare, *key, position, cost, taken, size, taste)
            )
        else:
            heapq.heappop(turns)
    for _late, _key, _rank, position, cost, taken, size, _taste in sorted(turns):
        if not taken:
            user = users[position]
            some = size if user.room is None else min(size, part_of(user.room, serial))
            picks += user.serve(rooms, cost, 0, some)
    return picks


def first_turns(
    users: Sequence[UserLanes], usual: float, holder: int, quantum: float
) -> list[Turn]:
    """Return the heap of the first turn of each user that has room."""
    turns: list[Turn] = []
    for position, user in enumerate(users):
        if user.room is None or user.room > 0:
            cost = user.charge(usual)
            size = 1 if user.policy == SLOTS else tasks_in_a_row(cost, quantum)
            taste = hash((holder, user.id)) if size > 1 else None
            key = place(user, 1, user.first(cost), taste, quantum)
            turns.append((user.spare == 0, *key, position, cost, 0, size, taste))
    heapq.heapify(turns)
    return turns


def part_of(room: int, serial: bool) -> int:
    """Return how much of its room a user is given of in one batch."""
    return max(1, room // SERIAL_PART) if serial else room


def place(
    user: UserLanes, number: int, cost: float, taste: int | None, quantum: float
) -> tuple[float, float]:
    """Return the key of a user's n-th next task, and a rank of equals."""
    key, rank = user.key(number, cost)
    return (key, rank) if taste is None else (math.floor(key / quantum) * quantum, taste)


def tasks_in_a_row(cost: float, quantum: float = QUANTUM) -> int:
    return max(1, int(quantum / cost))


def lanes_read(count: int, cost: float, before: int) -> int:
    """
    Return how many lanes to read for so many tasks.

    One for each task; but where tasks are very short, several times as many as a batch
    needs, so that two that look at once may choose different ones. ``cost`` is what the
    last tasks took, 0.0 if there were none, and ``before`` is of how many lanes they were.
    """
    if not cost or tasks_in_a_row(cost) == 1:
        return count
    return min(count, CHOICE * max(before, count // tasks_in_a_row(cost)))


def counted(picks: Iterable[Pick]) -> dict[int, int]:
    """Return how many tasks to take from each lane, the lanes in the order of their first."""
    counts: dict[int, int] = {}
    for pick in picks:
        counts[pick.lane] = counts.get(pick.lane, 0) + pick.count
    return counts


def learn(using: str, queue: str, holder: int, seconds: float) -> None:
    """
    Add what a task has taken whose lane was charged ``expected()`` for it.

    The holder that is charged wrongly is the one that learns. So over any time its errors
    add up to ``1 / (1 - MEMORY)`` longest tasks at most, however many users come.
    """
    place = using, queue, holder
    known = measured.pop(place, seconds)
    measured[place] = known * MEMORY + seconds * (1 - MEMORY)
    while len(measured) > HOLDERS:
        measured.pop(next(iter(measured)), None)


def expected(using: str, queue: str, holder: int) -> float | None:
    """Return what a task of a user is expected to cost of whom nothing is known, in seconds."""
    return measured.get((using, queue, holder))


# The setting POLICY, as the store needs it.


class FairRule(NamedTuple):
    """
    How a queue is served. ``code`` is what its lanes carry; with ``one_line`` all users wait
    in one line, which has a turn like that of a single user.
    """

    code: Policy
    one_line: bool = False


RULES = {
    "fair": FairRule(Policy.FAIR),
    "slots": FairRule(Policy.SLOTS),
    "fifo": FairRule(Policy.FAIR, one_line=True),
}


def rule_of(queue: str) -> FairRule:
    """Return the policy that the settings give a queue."""
    return RULES[options().policy(queue)]
