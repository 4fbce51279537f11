"""Who is next: the arithmetic of the fair order, with no database in sight."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .policies import BY_CODE, rule_of

LEAST_COST = 1e-4
FIRST_COST = 0.1
MEMORY = 0.75
QUANTUM = 0.002
LANES_PROBED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLane:
    """
    A lane that may be served, and by which policy. ``room`` is how many more may run; None
    is any number.
    """

    id: int
    virtual_time: float
    cost: float
    weight: float
    room: int | None
    running: int = 0
    policy: int = 0

    def key(self, number: int, cost: float) -> tuple[float, float]:
        """
        Return the key of its n-th next task, where each is expected to cost so much: of
        all lanes the smallest is served first.
        """
        return BY_CODE[self.policy].key(self, number, cost)

    @property
    def charge(self) -> float:
        """What one of its tasks is expected to cost, in seconds."""
        return max(self.cost, LEAST_COST)

    def at_once(self, quantum: float) -> int:
        """Return how many of its tasks are served in one turn."""
        return max(1, int(quantum / self.charge)) if BY_CODE[self.policy].quantum else 1


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


def lane_of(queue: str, user: str, keys: Sequence[str] = ()) -> int:
    """Return the lane in which a user's tasks wait by the policy of the queue."""
    return lane_id(queue, rule_of(queue).owner(user), keys)


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
    Return whom to serve, in order: always the lane whose next task has the smallest key,
    by its policy, and of equals the one whose turns are fewer.

    Where the policy goes by time, very short tasks are served a quantum of seconds at a
    time, as in deficit round robin (Shreedhar and Varghese, 1995), so that a batch writes
    to few accounts.
    """
    turns = [
        (*lane.key(1, max(lane.cost, LEAST_COST)), position, 0)
        for position, lane in enumerate(lanes)
        if lane.room is None or lane.room > 0
    ]
    heapq.heapify(turns)
    picks: list[Pick] = []
    while turns and len(picks) < count:
        _key, _step, position, taken = heapq.heappop(turns)
        lane = lanes[position]
        room = count if lane.room is None else lane.room - taken
        some = min(lane.at_once(quantum), room, count - len(picks))
        picks += [Pick(lane.id, lane.charge)] * some
        if some < room:
            taken += some
            heapq.heappush(turns, (*lane.key(taken + 1, lane.charge), position, taken))
    return picks


def counted(picks: Iterable[Pick]) -> dict[int, int]:
    """Return how many tasks to take from each lane."""
    counts: dict[int, int] = {}
    for pick in picks:
        counts[pick.lane] = counts.get(pick.lane, 0) + 1
    return counts
