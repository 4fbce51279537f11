"""Wake the lanes in which tickets wait, each at its place in the fair order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from django_perfectqueue.models import Policy

from ..arithmetic.fair_order import gate_id, is_gated, lane_id, unmeasured
from ..arithmetic.limit_keys import Keys, split, standing
from ..arithmetic.policies import rule_of
from ..database.dialects import Dialect
from ..database.dialects.base import Waking, numbers
from ..database.transaction import reading, repeated, unit
from ..limits.gates import gates_in_turn, serving_gates
from .share_sync import look_again
from .shares import Share, shares_of

FIRST_GATES = 8
SOME = 500
LAST = 8
"""How many of the lanes that were served last tell what tasks usually cost."""

OWNERS = """
SELECT "ticket"."lane", "task"."queue", "task"."user", "task"."type", "task"."limits",
    {run_at}, {created_at}, "lane"."id" IS NULL,
    EXISTS (SELECT 1 FROM "perfectqueue_gate")
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
WHERE "ticket"."task_id" IN ({ids})
"""
WAITS_ASLEEP = ' AND "ticket"."state" = 0 AND COALESCE("lane"."awake", FALSE) = FALSE'
FIRST_OPEN = """
SELECT "virtual_time" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "gate" = %(gate)s AND "open" = TRUE{alike}
ORDER BY "turn" LIMIT 1
"""
LAST_SHUT = """
SELECT "virtual_time" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "gate" = 0 AND "open" = FALSE ORDER BY "turn" DESC LIMIT 1
"""
CLOCK = """
SELECT MAX("finish_tag") FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "gate" = %(gate)s AND "finish_tag" > 0.0
"""
USUAL = f"""
SELECT AVG("cost") FROM (
    SELECT "cost" FROM "perfectqueue_lane"
    WHERE "queue" = %(queue)s AND "gate" = %(gate)s AND "finish_tag" > 0.0
    ORDER BY "finish_tag" DESC LIMIT {LAST}
) AS "last" WHERE "cost" > 0
"""
FLOOR = f"SELECT ({CLOCK}), ({FIRST_OPEN}), ({LAST_SHUT}), ({USUAL})"
LOCK_GATES = 'SELECT "id" FROM "perfectqueue_gate" WHERE "id" IN ({gates}) ORDER BY "id"'
GATES = 'INTO "perfectqueue_gate" ("id", "queue", "keys") VALUES {rows}'


@dataclass(frozen=True, slots=True)
class Owner:
    """
    Whose a lane is: its queue, user and limits, and the lane whose account it has.

    ``since`` is when the first of the tickets was due that are to wait there; no earlier
    than it was submitted, so that no one passes others by a time of their choice.
    ``is_new`` tells that it has no row, and ``gated`` whether there are gates at all.
    """

    lane: int
    account: int
    queue: str
    user: str
    keys: Keys
    since: datetime
    is_new: bool
    gated: bool

    @property
    def gate(self) -> int:
        return gate_id(self.queue, self.keys)


class Floor(NamedTuple):
    """The virtual time of a queue, and what its tasks usually cost, in seconds."""

    virtual_time: float
    usual: float


@repeated
def wake_sleeping(lanes: Mapping[int, int], *, using: str) -> None:
    """Wake those of these lanes, each given with a task in it, that sleep though it waits."""
    every = list(lanes.values())
    for first in range(0, len(every), SOME):
        with reading(using) as (cursor, dialect):
            ids = every[first : first + SOME]
            owners = owners_of(cursor, dialect, ids, WAITS_ASLEEP)
        if owners:
            # Where there are no gates, one statement writes it, and commits itself.
            opened = unit if any(owner.gated for owner in owners) else reading
            with opened(using) as (cursor, dialect):
                wake(cursor, dialect, owners, None)


def owners_of(
    cursor: Any, dialect: Dialect, ids: Sequence[int], condition: str = ""
) -> list[Owner]:
    """Return the owner of each lane in which these tickets stand."""
    statement = OWNERS.replace("{ids}", numbers(ids)) + condition
    statement = statement.replace("{run_at}", dialect.readable('"ticket"."run_at"'))
    statement = statement.replace("{created_at}", dialect.readable('"task"."created_at"'))
    rows = dialect.execute(cursor, statement).fetchall()
    owners: dict[int, Owner] = {}
    for lane, queue, user, type_, limits, run_at, created_at, is_new, gated in rows:
        since = max(dialect.moment(run_at), dialect.moment(created_at))
        if lane in owners:
            owners[lane] = replace(owners[lane], since=min(owners[lane].since, since))
        else:
            names = split(limits) if is_gated(lane) else []
            owner, keys = standing(lane, queue, type_, user, names)
            account = lane_id(queue, owner) if keys else lane
            whose = lane, account, queue, owner, keys
            owners[lane] = Owner(*whose, since, bool(is_new), bool(gated))
    return list(owners.values())


def wake(cursor: Any, dialect: Dialect, owners: list[Owner], now: datetime | None) -> int:
    """
    Wake lanes, each at the virtual time of its queue, or where it was if that is later;
    return how many that is.

    A lane behind a gate is woken after the one whose account it has, which need not have
    waiting tickets itself.
    """
    if not owners:
        # Their tasks were deleted meanwhile.
        return 0
    shares: defaultdict[tuple[str, str], Share] = defaultdict(Share)
    if fresh := {(owner.queue, owner.user) for owner in owners if owner.is_new}:
        shares.update(shares_of(cursor, dialect, fresh))
    places = {(owner.queue, owner.gate) for owner in owners}
    gated = any(owner.gated for owner in owners)
    known: dict[str, float | None] = {}
    floors = {place: floor(cursor, dialect, *place, gated=gated, known=known) for place in places}

    def waking(owner: Owner, lane: int, gate: int, *, awake: bool = True) -> Waking:
        share = shares[owner.queue, owner.user]
        return Waking(
            lane=lane,
            account=owner.account,
            gate=gate,
            queue=owner.queue,
            user=owner.user,
            virtual_time=floors[owner.queue, owner.gate].virtual_time,
            cost=unmeasured(share.weight, floors[owner.queue, owner.gate].usual),
            weight=share.weight,
            max_running=share.max_running,
            paused=share.paused,
            policy=rule_of(owner.queue).code,
            since=owner.since,
            awake=awake,
        )

    behind = sorted((owner for owner in owners if owner.gate), key=lambda owner: owner.lane)
    own = {owner.account: waking(owner, owner.account, 0, awake=False) for owner in behind}
    own |= {owner.lane: waking(owner, owner.lane, 0) for owner in owners if not owner.gate}
    dialect.wake(cursor, [own[lane] for lane in sorted(own)], now)
    if behind:
        open_gates(cursor, dialect, behind)
        dialect.wake(cursor, [waking(owner, owner.lane, owner.gate) for owner in behind], now)
    if behind or gated:
        dialect.copy_accounts(cursor, own)
    if fresh:
        look_again(cursor, sorted({owner.account for owner in owners if owner.is_new}))
    return len(owners)


def open_gates(cursor: Any, dialect: Dialect, owners: list[Owner]) -> None:
    """Lock gates, so that none is deleted before the lanes behind it are there; make missing."""
    gates = {owner.gate: owner for owner in owners}
    while missing := gates.keys() - locked_gates(cursor, dialect, gates):
        make_gates(cursor, dialect, {gate: gates[gate] for gate in missing})


def locked_gates(cursor: Any, dialect: Dialect, gates: Iterable[int]) -> set[int]:
    statement = LOCK_GATES.replace("{gates}", numbers(sorted(gates))) + dialect.lock_clause()
    return {gate for (gate,) in dialect.execute(cursor, statement).fetchall()}


def make_gates(cursor: Any, dialect: Dialect, gates: Mapping[int, Owner]) -> None:
    """Keep by which limits each gate holds tasks back."""
    values: dict[str, Any] = {}
    rows = []
    for number, gate in enumerate(sorted(gates)):
        values[f"q{number}"] = gates[gate].queue
        values[f"k{number}"] = json.dumps(gates[gate].keys)
        rows.append(f"({gate}, %(q{number})s, %(k{number})s)")
    dialect.insert_missing(cursor, GATES.replace("{rows}", ", ".join(rows)), values, key="id")


def floor(
    cursor: Any,
    dialect: Dialect,
    queue: str,
    gate: int = 0,
    *,
    gated: bool = False,
    known: dict[str, float | None] | None = None,
) -> Floor:
    """
    Return where a lane that wakes takes its place.

    Its virtual time is the last finish tag of the tasks that have ended, as in self-clocked fair
    queueing (Golestani, 1994): so it moves with the service that is given, and those who
    wait are not passed for ever by others who come. Behind a gate it is that of the lanes
    there, or where none is open that of the queue. It is no less than the virtual time of
    the lane that is served next: behind the same gate, or else of those whom nothing holds
    back now, or else of any. Where none is open, it is the largest virtual time that was
    reached, so that neither credit nor debt outlives the work that competed. Lanes that
    have yet to come from a policy without memory have no say in it. ``known`` keeps what
    was found of a queue, for several gates of it.
    """
    statement = FLOOR.replace("{alike}", alike(queue))
    row = dialect.execute(cursor, statement, {"queue": queue, "gate": gate}).fetchone()
    clock, first, reached, usual = row
    if gate and first is None:
        terms = {"queue": queue, "gate": 0}
        [clock] = dialect.execute(cursor, CLOCK, terms).fetchone()
    if (gate and first is None) or (gated and not gate):
        known = {} if known is None else known
        if queue not in known:
            known[queue] = served(cursor, dialect, queue)
        first = known[queue]
    least = (reached or 0.0) if first is None else first
    return Floor(max(clock or 0.0, least), usual or 0.0)


def served(cursor: Any, dialect: Dialect, queue: str, besides: int = 0) -> float | None:
    """
    Return the smallest virtual time of those who are served in a queue, behind whatever
    gate that lets tasks start now, but for one; or else behind any that lets them at all.
    """
    first, _more = gates_in_turn(cursor, dialect, queue, FIRST_GATES, None)
    for gates in ([0, *first], [0, *serving_gates(cursor, dialect, queue)[1][:FIRST_GATES]]):
        times = [first_open(cursor, dialect, queue, gate) for gate in gates if gate != besides]
        if known := [time for time in times if time is not None]:
            return min(known)
    return first_open(cursor, dialect, queue, 0)


def first_open(cursor: Any, dialect: Dialect, queue: str, gate: int) -> float | None:
    """Return the virtual time of the lane that is served next behind a gate."""
    statement = FIRST_OPEN.replace("{alike}", alike(queue))
    row = dialect.execute(cursor, statement, {"queue": queue, "gate": gate}).fetchone()
    return row and float(row[0])


def alike(queue: str) -> str:
    """Return the condition that leaves out lanes without virtual time where others have it."""
    by_time = rule_of(queue).code == Policy.FAIR
    return f' AND "policy" = {Policy.FAIR}' if by_time else ""
