"""Choose among lanes behind gates, and put what stands behind the wrong one where it belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..arithmetic.fair_order import OpenLane, lane_of
from ..arithmetic.limit_keys import may_hold, split
from ..arithmetic.multi_lane import Party, Strand, has_room
from ..arithmetic.rate_limit import Allowance
from ..database.dialects import Dialect
from ..database.dialects.base import numbers
from ..lanes.accounts import Accounts
from ..limits.gates import gates_in_turn
from ..limits.meters import limits
from ..values import Lease

UNITED = 100
"""SQLite takes 500 at most."""

FIRST = """
SELECT * FROM (
    SELECT "id", "account", "gate", "turn", "since", "virtual_time", "cost", "weight",
        "max_running", "running", "policy"
    FROM "perfectqueue_lane"
    WHERE "queue" = %(queue)s AND "gate" = {gate} AND "open" = TRUE AND "id" NOT IN ({passed})
    ORDER BY "turn", "since" LIMIT {count}
) AS "first"
"""
HEADS = """
SELECT * FROM (
    SELECT "lane", "rank", "run_at", "task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "state" = 0 AND {in_lane} ORDER BY "rank", "run_at", "task_id" LIMIT {count}
) AS "line"
"""
MOVE = """
UPDATE "perfectqueue_ticket"
SET "lane" = CASE "task_id" {lanes} END, "state" = 1, "alarm_at" = {now},
    "attempt" = "attempt" - 1, "holder" = NULL
WHERE "task_id" IN ({ids})
"""


@dataclass(slots=True)
class Gatekeeper:
    """
    Which lanes of some queues a transaction may serve, and what it lets through.

    Of each queue it looks at as many gates as it may need. It locks the meters of their
    limits at once, before any lane: so what they allow is exact, and no two transactions
    wait for each other in a ring. ``has_more`` tells that there are other gates.
    """

    cursor: Any
    dialect: Dialect
    accounts: Accounts
    gates: dict[int, list[str]]
    of_queue: dict[str, list[int]]
    allowed: dict[str, Allowance]
    now: datetime | None
    gate_of: dict[int, int] = field(default_factory=dict)
    moved: int = 0
    has_more: bool = False

    @classmethod
    def enter(
        cls,
        cursor: Any,
        dialect: Dialect,
        accounts: Accounts,
        queues: Sequence[str],
        count: int,
        now: datetime | None,
    ) -> Gatekeeper:
        gates: dict[int, list[str]] = {0: []}
        of_queue: dict[str, list[int]] = {queue: [0] for queue in queues}
        has_more = False
        for queue in queues:
            found, more = gates_in_turn(cursor, dialect, queue, count, now)
            gates |= found
            of_queue[queue] += found
            has_more |= more
        counted = {key for held_by in gates.values() for key in held_by}
        counted |= accounts.keys(cursor, dialect)
        allowed = accounts.meters.lock(cursor, dialect, counted, now)
        return cls(cursor, dialect, accounts, gates, of_queue, allowed, now, has_more=has_more)

    def rooms(self) -> dict[str, int]:
        """Return how many tasks each limit lets start now."""
        return {key: allowance.room for key, allowance in self.allowed.items()}

    def lanes(self, queue: str, count: int, passed: set[int]) -> list[tuple[Any, ...]]:
        """Return the first open lanes behind each gate that lets a task start."""
        rooms = self.rooms()
        gates = [gate for gate in self.of_queue[queue] if has_room(self.gates[gate], rooms)]
        first = FIRST.replace("{passed}", numbers(sorted(passed)) if passed else "0")
        first = first.replace("{count}", str(count))
        statements = [first.replace("{gate}", str(gate)) for gate in gates]
        rows = self.united(statements, {"queue": queue})
        self.gate_of.update((row[0], row[2]) for row in rows)
        return sorted(rows, key=lambda row: (row[3], row[4], row[0]))

    def united(
        self, statements: Sequence[str], values: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of many queries, so many of them in one statement."""
        rows: list[tuple[Any, ...]] = []
        for first in range(0, len(statements), UNITED):
            statement = " UNION ALL ".join(statements[first : first + UNITED])
            rows += self.dialect.execute(self.cursor, statement, values).fetchall()
        return rows

    def parties(self, lanes: Mapping[int, OpenLane], count: int) -> list[Party]:
        """
        Return lanes, each with its account, by the users whose they are.

        One beside others of its user that turns out to be empty is put to sleep.
        """
        parties: dict[int, Party] = {}
        for lane, account in lanes.items():
            party = parties.setdefault(account.id, Party(account, []))
            party.strands.append(Strand(lane, self.gate_of[lane]))
        strands = [
            strand
            for party in parties.values()
            if len(party.strands) > 1
            for strand in party.strands
        ]
        heads = self.heads([strand.lane for strand in strands], count)
        for strand in strands:
            strand.heads = heads.get(strand.lane, [])
            if not strand.heads:
                self.accounts.found_short(strand.lane)
        return list(parties.values())

    def heads(self, lanes: Sequence[int], count: int) -> dict[int, list[Any]]:
        """Return how the first tickets of each lane sort."""
        if not lanes:
            return {}
        lines = []
        for lane in lanes:
            in_lane = self.dialect.in_lane.replace("{lane}", str(lane))
            lines.append(HEADS.replace("{in_lane}", in_lane).replace("{count}", str(count)))
        rows = self.united(lines)
        heads: dict[int, list[Any]] = {}
        for lane, *head in rows:
            heads.setdefault(lane, []).append(tuple(head))
        for line in heads.values():
            line.sort()
        return heads

    def held_by(self, lane: int) -> list[str]:
        """Return the keys of the limits that hold for a lane."""
        return self.gates[self.gate_of[lane]]

    def count(self, lane: int) -> None:
        """Count a task that was taken from a lane."""
        for key in self.held_by(lane):
            if key in self.allowed:
                self.allowed[key].begin()

    def let_through(self, leases: list[Lease]) -> list[Lease]:
        """
        Return what stays taken, and count that against the limits.

        What stands in a lane that leaves out a limit which holds for it, one that was made
        after it was submitted, is moved to its own lane, to be woken by its alarm.
        """
        misplaced = self.misplaced(leases)
        if misplaced:
            self.move(misplaced)
        through = [lease for lease in leases if lease not in misplaced]
        for lease in through:
            self.count(lease.lane)
        return through

    def misplaced(self, leases: list[Lease]) -> dict[Lease, set[str]]:
        """Return what leaves out limits that hold for it, with the keys of these."""
        left_out = {
            lease: may_hold(lease.queue, lease.type, lease.user, split(lease.limits)).difference(
                self.held_by(lease.lane)
            )
            for lease in leases
        }
        asked = {key for keys in left_out.values() for key in keys}
        held_by = limits(self.cursor, self.dialect, asked).keys() if asked else set()
        return {lease: keys & held_by for lease, keys in left_out.items() if keys & held_by}

    def move(self, misplaced: dict[Lease, set[str]]) -> None:
        ids = numbers(sorted(lease.task_id for lease in misplaced))
        lanes = []
        for lease, keys in misplaced.items():
            own = sorted(keys.union(self.held_by(lease.lane)))
            lanes.append(f"WHEN {lease.task_id} THEN {lane_of(lease.queue, lease.user, own)}")
            self.accounts.end(lease, None)
        statement = MOVE.replace("{lanes}", " ".join(lanes)).replace("{ids}", ids)
        self.dialect.execute(self.cursor, statement, now=self.now)
        self.moved += len(misplaced)
