"""Who is next: the arithmetic of the fair order, with no database in sight."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEAST_COST = 1e-4
FIRST_COST = 0.0100001
"""What a task of a lane is expected to cost that was never measured; no mean is exactly so."""

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


def lane_id(queue: str, user: str) -> int:
    """
    Return the lane of a user in a queue: 64 bits of a hash.

    So a ticket can name its lane without a look-up. Among a million lanes two share an
    id with a probability of 3e-8; they would then share one turn.
    """
    digest = hashlib.blake2b(f"{queue}\x00{user}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def first_cost(cost: float) -> float:
    """
    Return what a task of a new lane is expected to cost, where one of the lane that is
    served next is expected to cost so much.

    Rather too little than too much: a newcomer who is expected to be long would wait until
    all others have had as much. What it is charged is another matter: see next_picks().
    """
    return min(cost, FIRST_COST)


def next_picks(lanes: Sequence[OpenLane], count: int, quantum: float = QUANTUM) -> list[Pick]:
    """
    Return whom to serve, in order: always the lane with the smallest virtual finish time,
    and of equals the one whose turns are fewer.

    This is weighted fair queueing (Demers, Keshav and Shenker, 1989) on expected costs,
    which measured ones correct when the tasks end. Very short tasks are served a quantum
    of seconds at a time, as in deficit round robin (Shreedhar and Varghese, 1995), so that
    a batch writes to few accounts.

    A lane that has not been measured takes its place by FIRST_COST, but is charged what
    the first that was is expected to cost: its first task comes soon, and not all of them.
    """
    usual = next((lane.cost for lane in lanes if lane.cost != FIRST_COST), FIRST_COST)
    turns = []
    for position, lane in enumerate(lanes):
        if lane.room is None or lane.room > 0:
            step = max(lane.cost, LEAST_COST) / lane.weight
            turns.append((*turn(lane.virtual_time, step, 1), position, 0))
    heapq.heapify(turns)
    picks: list[Pick] = []
    while turns and len(picks) < count:
        _time, _rank, position, taken = heapq.heappop(turns)
        lane = lanes[position]
        cost = max(lane.cost, LEAST_COST)
        if lane.cost == FIRST_COST:
            cost = max(cost, usual)
        room = count if lane.room is None else lane.room - taken
        some = min(max(1, int(quantum / cost)), room, count - len(picks))
        picks += [Pick(lane.id, cost)] * some
        if some < room:
            taken += some
            time = turn(lane.virtual_time, cost / lane.weight, taken + 1)
            heapq.heappush(turns, (*time, position, taken))
    return picks


def turn(virtual_time: float, step: float, number: int) -> tuple[float, float]:
    return round(virtual_time + step * number, 9), -step


def counted(picks: Iterable[Pick]) -> dict[int, int]:
    """Return how many tasks to take from each lane."""
    counts: dict[int, int] = {}
    for pick in picks:
        counts[pick.lane] = counts.get(pick.lane, 0) + 1
    return counts
