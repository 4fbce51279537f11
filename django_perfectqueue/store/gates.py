"""What limits hold back and what they let start, as one transaction sees it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .accounts import Accounts
from .dialects import Dialect
from .dialects.base import numbers
from .keys import keys_of, scoped, split
from .lanes import OpenLane, is_gated, lane_of
from .meters import allowances, limits
from .parties import Party, Strand
from .rate import Allowance
from .values import Lease

UNITED = 100
"""SQLite takes 500 at most."""

ANY_LIMITS = """(
    (SELECT 1 FROM "perfectqueue_gate" LIMIT 1) IS NOT NULL
    OR (SELECT 1 FROM "perfectqueue_limit" LIMIT 1) IS NOT NULL
)"""
OPEN_GATES = """
SELECT "gate"."id", "gate"."queue", "gate"."keys" FROM "perfectqueue_gate" AS "gate"
WHERE "gate"."queue" IN ({queues}) AND (
    SELECT 1 FROM "perfectqueue_lane" AS "lane"
    WHERE "lane"."queue" = "gate"."queue" AND "lane"."gate" = "gate"."id" AND "lane"."open" = TRUE
    {waiting} LIMIT 1
) IS NOT NULL
ORDER BY "gate"."id"
"""
KEYS = 'SELECT "id", "keys" FROM "perfectqueue_gate" WHERE "id" IN ({gates})'
WAITING = """AND (
    SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_lane} LIMIT 1
) IS NOT NULL"""
FIRST = """
SELECT * FROM (
    SELECT "id", "account", "gate", "turn", "virtual_time", "cost", "weight", "max_running",
        "running", "policy"
    FROM "perfectqueue_lane"
    WHERE "queue" = %(queue)s AND "gate" = {gate} AND "open" = TRUE AND "id" NOT IN ({passed})
    ORDER BY "turn" LIMIT {count}
) AS "first"
"""
HEADS = """
SELECT * FROM (
    SELECT "lane", "rank", "run_at", "task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "state" = 0 AND {in_lane} ORDER BY "rank", "run_at", "task_id" LIMIT {count}
) AS "line"
"""
LISTED = 'SELECT "id", "limits" FROM "perfectqueue_task" WHERE "id" IN ({ids})'
MOVE = """
UPDATE "perfectqueue_ticket"
SET "lane" = CASE "task_id" {lanes} END, "state" = 1, "alarm_at" = {now},
    "attempt" = "attempt" - 1, "holder" = NULL
WHERE "task_id" IN ({ids})
"""


def open_gates(
    cursor: Any, dialect: Dialect, queues: Sequence[str], *, waiting: bool = False
) -> list[tuple[int, str, list[str]]]:
    """
    Return the gates of these queues behind which a lane is open, each with its queue and
    keys; with ``waiting`` only those behind which a task waits indeed.
    """
    names = {f"queue{number}": queue for number, queue in enumerate(queues)}
    statement = OPEN_GATES.replace("{queues}", ", ".join(f"%({name})s" for name in names))
    in_lane = dialect.in_lane.replace("{lane}", '"lane"."id"')
    statement = statement.replace("{waiting}", WAITING if waiting else "")
    rows = dialect.execute(cursor, statement.replace("{in_lane}", in_lane), names).fetchall()
    return [(gate, queue, json.loads(keys)) for gate, queue, keys in rows]


def serving_gates(cursor: Any, dialect: Dialect, queue: str) -> tuple[list[int], list[int]]:
    """
    Return the gates of a queue, none among them, whose limits let tasks start now; and
    those that let them start at all, now or once others have ended.
    """
    gates = open_gates(cursor, dialect, [queue])
    keys = {key for _gate, _queue, held_by in gates for key in held_by}
    allowed = allowances(cursor, dialect, keys, None)
    now, ever = [0], [0]
    for gate, _queue, held_by in gates:
        holding = [allowed[key] for key in held_by if key in allowed]
        if all(allowance.room for allowance in holding):
            now.append(gate)
        if all(allowance.serves for allowance in holding):
            ever.append(gate)
    return now, ever


def shut_gates(
    cursor: Any, dialect: Dialect, gates: Collection[int], now: datetime | None
) -> set[int]:
    """Return which of these gates let no task start now."""
    if not gates:
        return set()
    statement = KEYS.replace("{gates}", numbers(sorted(gates)))
    rows = dialect.execute(cursor, statement).fetchall()
    held_by = {gate: json.loads(keys) for gate, keys in rows}
    keys = {key for some in held_by.values() for key in some}
    allowed = allowances(cursor, dialect, keys, now)
    return {
        gate
        for gate, some in held_by.items()
        if not all(allowed[key].room for key in some if key in allowed)
    }


def waits_behind(
    cursor: Any, dialect: Dialect, queues: Sequence[str], now: datetime | None
) -> list[float]:
    """
    Return in how many seconds each gate lets a task start that waits behind it.

    A gate that opens only when a running task ends, or when someone acts, is left out.
    """
    gates = open_gates(cursor, dialect, queues, waiting=True)
    keys = {key for _gate, _queue, held_by in gates for key in held_by}
    allowed = allowances(cursor, dialect, keys, now)
    waits = []
    for _gate, _queue, held_by in gates:
        holding = [allowed[key] for key in held_by if key in allowed and not allowed[key].room]
        times = [allowance.wait for allowance in holding]
        if None not in times:
            waits.append(max((time for time in times if time is not None), default=0.0))
    return waits


@dataclass(slots=True)
class Gatekeeper:
    """
    Which lanes of some queues a transaction may serve, and what it lets through.

    It locks the meters of all limits of these queues at once, before any lane: so what
    they allow is exact, and no two transactions wait for each other in a ring.
    """

    cursor: Any
    dialect: Dialect
    accounts: Accounts
    gates: dict[int, list[str]]
    of_queue: dict[str, list[int]]
    allowed: dict[str, Allowance]
    now: datetime | None
    moved: int = 0

    @classmethod
    def enter(
        cls,
        cursor: Any,
        dialect: Dialect,
        accounts: Accounts,
        queues: Sequence[str],
        now: datetime | None,
    ) -> Gatekeeper:
        gates: dict[int, list[str]] = {0: []}
        of_queue: dict[str, list[int]] = {queue: [0] for queue in queues}
        for gate, queue, keys in open_gates(cursor, dialect, queues):
            gates[gate] = keys
            of_queue[queue].append(gate)
        counted = {key for held_by in gates.values() for key in held_by}
        counted |= accounts.keys(cursor, dialect)
        allowed = accounts.meters.lock(cursor, dialect, counted, now)
        return cls(cursor, dialect, accounts, gates, of_queue, allowed, now)

    def rooms(self) -> dict[str, int]:
        """Return how many tasks each limit lets start now."""
        return {key: allowance.room for key, allowance in self.allowed.items()}

    def lanes(self, queue: str, count: int, passed: set[int]) -> list[tuple[Any, ...]]:
        """Return the first open lanes behind each gate that lets a task start."""
        rooms = self.rooms()
        gates = [
            gate
            for gate in self.of_queue[queue]
            if all(rooms.get(key, 1) > 0 for key in self.gates[gate])
        ]
        first = FIRST.replace("{passed}", numbers(sorted(passed)) if passed else "0")
        first = first.replace("{count}", str(count))
        statements = [first.replace("{gate}", str(gate)) for gate in gates]
        rows = self.united(statements, {"queue": queue})
        return sorted(rows, key=lambda row: (row[3], row[0]))

    def united(
        self, statements: Sequence[str], values: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of many queries, so many of them in one statement."""
        rows: list[tuple[Any, ...]] = []
        for first in range(0, len(statements), UNITED):
            statement = " UNION ALL ".join(statements[first : first + UNITED])
            rows += self.dialect.execute(self.cursor, statement, values).fetchall()
        return rows

    def parties(self, lanes: Sequence[tuple[int, int, OpenLane]], count: int) -> list[Party]:
        """
        Return lanes, each with its gate and account, by the users whose they are.

        One beside others of its user that turns out to be empty is put to sleep.
        """
        parties: dict[int, Party] = {}
        for lane, gate, account in lanes:
            party = parties.setdefault(account.id, Party(account, []))
            party.strands.append(Strand(lane, gate))
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

    def count(self, gate: int) -> None:
        """Count a task that was taken from behind a gate."""
        for key in self.gates[gate]:
            if key in self.allowed:
                self.allowed[key].begin()

    def let_through(self, leases: list[Lease], gates: dict[int, int]) -> list[Lease]:
        """
        Return what stays taken.

        What stands in a lane that leaves out a limit which holds for it, one that was made
        after it was submitted, is moved to its own lane, to be woken by its alarm. ``gates``
        are those of the lanes.
        """
        misplaced = self.misplaced(leases, gates)
        if misplaced:
            self.move(misplaced)
        return [lease for lease in leases if lease not in misplaced]

    def misplaced(self, leases: list[Lease], gates: dict[int, int]) -> dict[Lease, set[str]]:
        """Return what leaves out limits that hold for it, with the keys of these."""
        left_out = {
            lease: scoped(lease.queue, lease.type, lease.user).difference(
                self.gates[gates[lease.lane]]
            )
            for lease in leases
        }
        asked = {key for keys in left_out.values() for key in keys}
        held_by = limits(self.cursor, self.dialect, asked).keys() if asked else set()
        return {lease: keys & held_by for lease, keys in left_out.items() if keys & held_by}

    def move(self, misplaced: dict[Lease, set[str]]) -> None:
        ids = numbers(sorted(lease.task_id for lease in misplaced))
        rows = self.dialect.execute(self.cursor, LISTED.replace("{ids}", ids)).fetchall()
        listed = dict(rows)
        lanes = []
        for lease, keys in misplaced.items():
            known = keys.union(self.gates_of(lease))
            names = split(listed[lease.task_id])
            own = keys_of(lease.queue, lease.type, lease.user, names, known)
            lanes.append(f"WHEN {lease.task_id} THEN {lane_of(lease.queue, lease.user, own)}")
            self.accounts.end(lease, None)
        statement = MOVE.replace("{lanes}", " ".join(lanes)).replace("{ids}", ids)
        self.dialect.execute(self.cursor, statement, now=self.now)
        self.moved += len(misplaced)

    def gates_of(self, lease: Lease) -> list[str]:
        """Return the keys of the gate behind which a task stood."""
        if not is_gated(lease.lane):
            return []
        return self.accounts.places(self.cursor, self.dialect)[lease.lane].keys
