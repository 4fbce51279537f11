"""Who is next: the arithmetic of the fair order, with no database in sight."""

from __future__ import annotations

import functools
import hashlib
import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django_perfectqueue.models import Policy

from .policies import rule_of

LEAST_COST = 1e-4
MEMORY = 0.75
QUANTUM = 0.002
FIRST_COST = QUANTUM
"""By what cost a lane takes its place that was never measured, if its weight is not small."""

HOLDERS = 1_000

measured: OrderedDict[tuple[str, str, int], float] = OrderedDict()
"""What the first tasks of new users cost, as each holder has measured it."""

SLOTS = Policy.SLOTS.value
LANES_PROBED = 500
CHOICE = 5
ANY = 1 << 30
SERIAL_PART = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLane:
    """
    A lane that may be served, and by which policy. ``room`` is how many more may run; None
    is any number. Where none of its tasks was ever measured ``cost`` is negative: see
    ``unmeasured()``. ``share`` is how many processors it may use where others wait and it is
    not known how long its tasks take; ``spare`` is how many more that is, ANY where it is
    known. Tasks beyond these come after those of all others.
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

    def key(self, number: int, cost: float) -> tuple[float, float]:
        """
        Return the key of its n-th next task, where each is expected to cost so much: of
        all lanes the smallest is served first. The column ``turn`` is that of the first.

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
        return max(usual if self.is_new else self.cost, LEAST_COST)

    def first(self, cost: float) -> float:
        """Return by what cost it takes its place; one that was never measured by no large one."""
        return min(cost, -self.cost) if self.is_new else cost

    def pick(self, cost: float, taken: int, count: int) -> Pick:
        """Pick so many tasks behind those taken before, each charged this cost."""
        tag = 0.0
        if self.policy != SLOTS:
            tag = self.virtual_time + cost * (taken + count) / self.weight
        return Pick(self.id, cost, count, tag, self.is_new, self.share)

    def at_once(self, cost: float) -> int:
        """Return how many of its tasks are served in one turn."""
        return 1 if self.policy == SLOTS else tasks_in_a_row(cost)


@dataclass(frozen=True, slots=True)
class Pick:
    """
    Tasks to be taken from a lane in a row, and what each is expected to cost, in seconds.

    ``finish_tag`` is the virtual time that the lane will have reached with the last of
    them, 0.0 where the policy keeps none; ``is_new`` means that none of its tasks was ever
    measured. ``share`` is that of the lane.
    """

    lane: int
    cost: float
    count: int = 1
    finish_tag: float = 0.0
    is_new: bool = False
    share: int = 0


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


def next_picks(
    lanes: Sequence[OpenLane],
    count: int,
    *,
    holder: int,
    usual: float = FIRST_COST,
    serial: bool = False,
) -> list[Pick]:
    """
    Return whom to serve, in order: always the lane whose next task has the smallest key,
    by its policy, and of equals the one whose turns are fewer, and then the first given.

    Where the policy goes by time, very short tasks are served a quantum of seconds at a
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
    turns = []
    for position, lane in enumerate(lanes):
        if lane.room is None or lane.room > 0:
            cost = lane.charge(usual)
            size = lane.at_once(cost)
            taste = hash((holder, lane.id)) if size > 1 else None
            key = place(lane, 1, lane.first(cost), taste)
            turns.append((lane.spare == 0, *key, position, cost, 0, size, taste))
    heapq.heapify(turns)
    picks: list[Pick] = []
    missing = count
    while turns and missing:
        _late, _key, _rank, position, cost, taken, size, taste = turns[0]
        lane = lanes[position]
        room = count if lane.room is None else part_of(lane.room, serial) - taken
        if not room:
            return picks
        some = min(size, room, missing, lane.spare - taken if taken < lane.spare else missing)
        picks.append(lane.pick(cost, taken, some))
        missing -= some
        if some < room or serial:
            taken += some
            key = place(lane, taken + 1, cost, taste)
            heapq.heapreplace(
                turns, (taken >= lane.spare, *key, position, cost, taken, size, taste)
            )
        else:
            heapq.heappop(turns)
    for _late, _key, _rank, position, cost, taken, size, _taste in sorted(turns):
        if not taken:
            lane = lanes[position]
            some = size if lane.room is None else min(size, part_of(lane.room, serial))
            picks.append(lane.pick(cost, 0, some))
    return picks


def part_of(room: int, serial: bool) -> int:
    """Return how much of its room a lane is given of in one batch."""
    return max(1, room // SERIAL_PART) if serial else room


def place(lane: OpenLane, number: int, cost: float, taste: int | None) -> tuple[float, float]:
    """Return the key of a lane's n-th next task, and a rank of equals."""
    key, rank = lane.key(number, cost)
    return (key, rank) if taste is None else (math.floor(key / QUANTUM) * QUANTUM, taste)


def tasks_in_a_row(cost: float) -> int:
    return max(1, int(QUANTUM / cost))


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
