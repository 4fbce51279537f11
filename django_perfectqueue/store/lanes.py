"""Who is next: the arithmetic of the fair order, with no database in sight."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEAST_COST = 1e-4
FIRST_COST = 0.1
MEMORY = 0.75
QUANTUM = 0.002
LANES_PROBED = 500


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
    """One task to be taken from a lane, and what it is expected to cost, in seconds."""

    lane: int
    cost: float


def lane_id(queue: str, user: str, keys: Sequence[str] = ()) -> int:
    """
    Return the lane of a user in a queue, for the tasks that keep to these limits: 63 bits
    of a hash, and one that tells whether there are any.

    So a ticket can name its lane without a look-up. Among a million lanes two share an
    id with a probability of 5e-8; they would then share one turn.
    """
    if not keys:
        return hashed(queue, user) & ~1
    return hashed(queue, user, *keys) | 1


def gate_id(queue: str, keys: Sequence[str]) -> int:
    """Return the gate of a set of limits in a queue; 0 for none."""
    return hashed(queue, *keys) | 1 if keys else 0


def is_gated(lane: int) -> bool:
    """Tell whether the tasks of a lane keep to limits."""
    return bool(lane & 1)


def hashed(*names: str) -> int:
    digest = hashlib.blake2b("\x00".join(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def next_picks(lanes: Sequence[OpenLane], count: int, quantum: float = QUANTUM) -> list[Pick]:
    """
    Return whom to serve, in order: always the lane with the smallest virtual finish time,
    and of equals the one whose turns are fewer.

    This is weighted fair queueing (Demers, Keshav and Shenker, 1989) on expected costs,
    which measured ones correct when the tasks end. Very short tasks are served a quantum
    of seconds at a time, as in deficit round robin (Shreedhar and Varghese, 1995), so that
    a batch writes to few accounts.
    """
    turns = []
    for position, lane in enumerate(lanes):
        if lane.room is None or lane.room > 0:
            step = max(lane.cost, LEAST_COST) / lane.weight
            turns.append((*turn(lane.virtual_time, step, 1), position, step, 0))
    heapq.heapify(turns)
    picks: list[Pick] = []
    while turns and len(picks) < count:
        _time, _rank, position, step, taken = heapq.heappop(turns)
        lane = lanes[position]
        cost = max(lane.cost, LEAST_COST)
        room = count if lane.room is None else lane.room - taken
        some = min(max(1, int(quantum / cost)), room, count - len(picks))
        picks += [Pick(lane.id, cost)] * some
        if some < room:
            taken += some
            time = turn(lane.virtual_time, step, taken + 1)
            heapq.heappush(turns, (*time, position, step, taken))
    return picks


def turn(virtual_time: float, step: float, number: int) -> tuple[float, float]:
    return round(virtual_time + step * number, 9), -step


def counted(picks: Iterable[Pick]) -> dict[int, int]:
    """Return how many tasks to take from each lane."""
    counts: dict[int, int] = {}
    for pick in picks:
        counts[pick.lane] = counts.get(pick.lane, 0) + 1
    return counts
