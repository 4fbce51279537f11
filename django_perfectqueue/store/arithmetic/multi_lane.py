"""Who is next where a user has several lanes, and limits hold some back: the arithmetic."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from .fair_order import FIRST_COST, OpenLane, Pick, part_of


@dataclass(slots=True)
class Strand:
    """
    One lane of a user, and the keys of the limits to which its tasks keep.

    ``heads`` are its first tickets as they sort; where they are not known it has enough.
    """

    lane: int
    keys: Sequence[str]
    heads: list[tuple[float, ...]] | None = None
    served: int = 0

    @property
    def is_spent(self) -> bool:
        return self.heads is not None and self.served >= len(self.heads)


@dataclass(slots=True)
class Party:
    """A user's account, and its lanes that may be served."""

    account: OpenLane
    strands: list[Strand]

    def next_strand(self, rooms: Mapping[str, int]) -> Strand | None:
        """Return the lane whose first ticket is next, of those that no limit holds back."""
        free = [strand for strand in self.strands if has_room(strand.keys, rooms)]
        waiting = [strand for strand in free if not strand.is_spent]
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        return min(waiting, key=lambda strand: (strand.heads or [])[strand.served])

    @property
    def is_spent(self) -> bool:
        """Return whether it has no more tickets."""
        return all(strand.is_spent for strand in self.strands)


def has_room(keys: Sequence[str], rooms: Mapping[str, int]) -> bool:
    return all(rooms.get(key, 1) > 0 for key in keys)


def party_picks(
    parties: Sequence[Party],
    rooms: MutableMapping[str, int],
    count: int,
    *,
    usual: float = FIRST_COST,
    serial: bool = False,
) -> list[Pick]:
    """
    Return whom to serve, in order, as next_picks() does, with all the lanes of a user as one.

    Within a user's lanes the tasks go by priority and age; what a limit holds back is
    passed over, and holds back nothing else. ``rooms`` is how many each limit lets
    start, and is counted down.
    """
    for key, room in rooms.items():
        rooms[key] = part_of(room, serial) if room else 0
    turns = []
    for position, party in enumerate(parties):
        account = party.account
        if account.room is None or account.room > 0:
            cost = account.charge(usual)
            turn = account.key(1, account.first(cost))
            turns.append((account.spare == 0, *turn, position, cost, 0))
    heapq.heapify(turns)
    picks: list[Pick] = []
    while turns and len(picks) < count:
        _late, _key, _rank, position, cost, taken = heapq.heappop(turns)
        account = parties[position].account
        room = count if account.room is None else part_of(account.room, serial) - taken
        spare = account.spare - taken if taken < account.spare else count
        some = min(account.at_once(cost), room, count - len(picks), spare)
        lanes = serve(parties[position], rooms, some)
        if taken and not lanes:
            if parties[position].is_spent or not serial:
                continue
            # What it has taken in this batch holds it back until that has ended.
            return picks
        for lane in lanes:
            picks.append(replace(account.pick(cost, taken, 1), lane=lane))
            taken += 1
        if (serial and lanes) or len(lanes) == some < room:
            turn = account.key(taken + 1, cost)
            heapq.heappush(turns, (taken >= account.spare, *turn, position, cost, taken))
    return picks


def serve(party: Party, rooms: MutableMapping[str, int], count: int) -> list[int]:
    """Return the lanes of the next so many tickets of a user, or of as many as may start."""
    lanes: list[int] = []
    while len(lanes) < count and (strand := party.next_strand(rooms)):
        strand.served += 1
        lanes.append(strand.lane)
        for key in strand.keys:
            if key in rooms:
                rooms[key] -= 1
    return lanes
