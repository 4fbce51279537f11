"""Wake the lanes in which tickets wait, each at its place in the fair order."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from ..models import Policy
from .carry import look_again
from .dialects import Dialect
from .dialects.base import Waking, numbers
from .gates import serving_gates
from .keys import Keys, split, standing
from .lanes import FIRST_COST, gate_id, is_gated, lane_id
from .policies import rule_of
from .shares import Share, shares_of

OWNERS = """
SELECT "ticket"."lane", "task"."queue", "task"."user", "task"."type", "task"."limits",
    "lane"."id" IS NULL, EXISTS (SELECT 1 FROM "perfectqueue_gate")
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
WHERE "ticket"."task_id" IN ({ids})
"""
FIRST_OPEN = """
SELECT "virtual_time" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "gate" = %(gate)s AND "open" = TRUE{alike}
ORDER BY "turn" LIMIT 1
"""
GATES = 'INTO "perfectqueue_gate" ("id", "queue", "keys") VALUES {rows}'
LAST_SHUT = """
SELECT "virtual_time" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "gate" = 0 AND "open" = FALSE ORDER BY "turn" DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """
    Whose a lane is: its queue, user and limits, and the lane whose account it has.

    ``is_new`` tells that it has no row, and ``gated`` whether there are gates at all.
    """

    lane: int
    account: int
    queue: str
    user: str
    keys: Keys
    is_new: bool
    gated: bool

    @property
    def gate(self) -> int:
        return gate_id(self.queue, self.keys)


def owners_of(cursor: Any, dialect: Dialect, ids: list[int]) -> list[Owner]:
    """Return the owner of each lane in which these tickets stand."""
    rows = dialect.execute(cursor, OWNERS.replace("{ids}", numbers(ids))).fetchall()
    owners = {}
    for lane, queue, user, type_, limits, is_new, gated in rows:
        if lane not in owners:
            names = split(limits) if is_gated(lane) else []
            owner, keys = standing(lane, queue, type_, user, names)
            account = lane_id(queue, owner) if keys else lane
            owners[lane] = Owner(lane, account, queue, owner, keys, bool(is_new), bool(gated))
    return list(owners.values())


def wake(cursor: Any, dialect: Dialect, owners: list[Owner]) -> int:
    """
    Wake lanes, each at the smallest virtual time of those that are served; return how
    many that is.

    A lane behind a gate is woken after the one whose account it has, which need not have
    waiting tickets itself.
    """
    shares: defaultdict[tuple[str, str], Share] = defaultdict(Share)
    if fresh := {(owner.queue, owner.user) for owner in owners if owner.is_new}:
        shares.update(shares_of(cursor, dialect, fresh))
    places = {(owner.queue, owner.gate) for owner in owners}
    gated = any(owner.gated for owner in owners)
    floors = {place: floor(cursor, dialect, *place, gated=gated) for place in places}

    def waking(owner: Owner, lane: int, gate: int, *, awake: bool = True) -> Waking:
        share = shares[owner.queue, owner.user]
        return Waking(
            lane=lane,
            account=owner.account,
            gate=gate,
            queue=owner.queue,
            user=owner.user,
            virtual_time=floors[owner.queue, owner.gate],
            cost=FIRST_COST,
            weight=share.weight,
            max_running=share.max_running,
            paused=share.paused,
            policy=rule_of(owner.queue).code,
            awake=awake,
        )

    behind = sorted((owner for owner in owners if owner.gate), key=lambda owner: owner.lane)
    own = {owner.account: waking(owner, owner.account, 0, awake=False) for owner in behind}
    own |= {owner.lane: waking(owner, owner.lane, 0) for owner in owners if not owner.gate}
    dialect.wake(cursor, [own[lane] for lane in sorted(own)])
    if behind:
        open_gates(cursor, dialect, behind)
        dialect.wake(cursor, [waking(owner, owner.lane, owner.gate) for owner in behind])
    if behind or gated:
        dialect.copy_accounts(cursor, own)
    if fresh:
        look_again(cursor, sorted({owner.account for owner in owners if owner.is_new}))
    return len(owners)


def open_gates(cursor: Any, dialect: Dialect, owners: list[Owner]) -> None:
    """Keep by which limits each gate holds tasks back."""
    gates = {owner.gate: owner for owner in owners}
    values: dict[str, Any] = {}
    rows = []
    for number, gate in enumerate(sorted(gates)):
        values[f"q{number}"] = gates[gate].queue
        values[f"k{number}"] = json.dumps(gates[gate].keys)
        rows.append(f"({gate}, %(q{number})s, %(k{number})s)")
    dialect.insert_missing(cursor, GATES.replace("{rows}", ", ".join(rows)), values, key="id")


def floor(
    cursor: Any, dialect: Dialect, queue: str, gate: int = 0, *, gated: bool = False
) -> float:
    """
    Return the virtual time at which a lane that wakes takes its place.

    The smallest time of those being served: behind the same gate, or else of those whom
    nothing holds back now, or else of any. Where none is, the largest that was reached, so
    that neither credit nor debt outlives the work that competed. Lanes that have yet to
    come from a policy without memory have no say in it.
    """
    if gate and (first := first_open(cursor, dialect, queue, gate)) is not None:
        return first
    first = served(cursor, dialect, queue) if gated else first_open(cursor, dialect, queue, 0)
    if first is not None:
        return first
    row = dialect.execute(cursor, LAST_SHUT, {"queue": queue}).fetchone()
    return float(row[0]) if row else 0.0


def served(cursor: Any, dialect: Dialect, queue: str, besides: int = 0) -> float | None:
    """
    Return the smallest virtual time of those who are served in a queue, behind whatever
    gate that lets tasks start now, but for one; or else behind any that lets them at all.
    """
    for gates in serving_gates(cursor, dialect, queue):
        times = [first_open(cursor, dialect, queue, gate) for gate in gates if gate != besides]
        if known := [time for time in times if time is not None]:
            return min(known)
    return first_open(cursor, dialect, queue, 0)


def first_open(cursor: Any, dialect: Dialect, queue: str, gate: int) -> float | None:
    """Return the virtual time of the lane that is served next behind a gate."""
    by_time = rule_of(queue).code == Policy.FAIR
    statement = FIRST_OPEN.replace("{alike}", f' AND "policy" = {Policy.FAIR}' if by_time else "")
    row = dialect.execute(cursor, statement, {"queue": queue, "gate": gate}).fetchone()
    return row and float(row[0])
