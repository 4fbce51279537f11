"""Who is next: the arithmetic of the fair order, with no database in sight."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEAST_COST = 1e-4
MEMORY = 0.75
QUANTUM = 0.002
FIRST_COST = QUANTUM
LANES_PROBED = 500
CHOICE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLane:
    """A lane that may be served. ``room`` is how many more may run; None is any number."""

    id: int
    virtual_time: float
    cost: float
    weight: float
    room: int | None


@dataclass(frozen=True, slots=True)
class Pick:
    """Tasks to be taken from a lane in a row, and what each is expected to cost, in seconds."""

    lane: int
    cost: float
    count: int


def lane_id(queue: str, user: str) -> int:
    """
    Return the lane of a user in a queue: 64 bits of a hash.

    So a ticket can name its lane without a look-up. Among a million lanes two share an
    id with a probability of 3e-8; they would then share one turn.
    """
    digest = hashlib.blake2b(f"{queue}\x00{user}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def next_picks(lanes: Sequence[OpenLane], count: int, *, holder: int) -> list[Pick]:
    """
    Return whom to serve, in order: always the lane with the smallest virtual finish time,
    and of equals the one whose turns are fewer.

    This is weighted fair queueing (Demers, Keshav and Shenker, 1989) on expected costs,
    which measured ones correct when the tasks end. Very short tasks are served a quantum
    of seconds at a time, as in deficit round robin (Shreedhar and Varghese, 1995), so that
    a batch writes to few accounts. Among such lanes a quantum more or less is no matter,
    and each holder has its own order: so two that look at once choose different ones.

    Behind ``count`` tasks come the first of the lanes that have not had a turn, for where
    the others turn out to have less than was picked.
    """
    turns = []
    for position, lane in enumerate(lanes):
        if lane.room is None or lane.room > 0:
            cost = max(lane.cost, LEAST_COST)
            size = tasks_in_a_row(cost)
            step = cost / lane.weight
            taste = hash((holder, lane.id)) if size > 1 else None
            turns.append((*turn(lane, step, 1, taste), position, step, 0, size, taste))
    heapq.heapify(turns)
    picks: list[Pick] = []
    missing = count
    while turns and missing:
        _time, _rank, position, step, taken, size, taste = turns[0]
        lane = lanes[position]
        room = count if lane.room is None else lane.room - taken
        some = min(size, room, missing)
        picks.append(Pick(lane.id, max(lane.cost, LEAST_COST), some))
        missing -= some
        if some < room:
            taken += some
            time = turn(lane, step, taken + 1, taste)
            heapq.heapreplace(turns, (*time, position, step, taken, size, taste))
        else:
            heapq.heappop(turns)
    for _time, _rank, position, _step, taken, size, _taste in sorted(turns):
        if not taken:
            lane = lanes[position]
            some = size if lane.room is None else min(size, lane.room)
            picks.append(Pick(lane.id, max(lane.cost, LEAST_COST), some))
    return picks


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


def turn(lane: OpenLane, step: float, number: int, taste: int | None) -> tuple[float, float]:
    """Return the virtual time at which a task of a lane would be done, and a rank of equals."""
    time = lane.virtual_time + step * number
    if taste is None:
        return round(time, 9), -step
    return math.floor(time / QUANTUM) * QUANTUM, taste


def counted(picks: Iterable[Pick]) -> dict[int, int]:
    """Return how many tasks to take from each lane, the lanes in the order of their first."""
    counts: dict[int, int] = {}
    for pick in picks:
        counts[pick.lane] = counts.get(pick.lane, 0) + pick.count
    return counts
