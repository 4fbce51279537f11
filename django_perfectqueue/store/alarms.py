"""What the clock moves: due tasks, lapsed leases, and lanes that sleep with work in them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connections

from ..conf import OTHERS, options
from ..models import Policy, State
from .accounts import Accounts
from .carry import look_again
from .dialects import Dialect
from .dialects.base import Waking, numbers
from .end import lose
from .gates import serving_gates
from .keys import Keys, split, standing
from .lanes import FIRST_COST, gate_id, is_gated, lane_id
from .policies import rule_of
from .shares import Share, shares_of
from .transaction import is_callers, reading, repeated, unit

BATCH = 500
BATCHES = 4

RINGING = """
SELECT 1 FROM "perfectqueue_ticket" WHERE "alarm_at" <= {now} ORDER BY "alarm_at" LIMIT 1
"""
RUNG = """
SELECT "task_id", "lane", "state"{asynchronous_commit} FROM "perfectqueue_ticket"
WHERE "alarm_at" <= {now} ORDER BY "alarm_at" LIMIT %(limit)s
"""
READMIT = """
UPDATE "perfectqueue_ticket" SET "state" = 0, "alarm_at" = NULL WHERE "task_id" IN ({ids})
"""
OWNERS = """
SELECT "ticket"."lane", "task"."queue", "task"."user", "task"."type", "task"."limits",
    "lane"."id" IS NULL, EXISTS (SELECT 1 FROM "perfectqueue_gate")
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
WHERE "ticket"."task_id" IN ({ids})
"""
SLEEPING = """
WITH RECURSIVE "line" AS ({waiting_lanes})
SELECT (
    SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_lane} ORDER BY "ticket"."rank" LIMIT 1
)
FROM "line" LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "line"."lane"
LEFT JOIN "perfectqueue_lane" AS "own" ON "own"."id" = "lane"."account"
WHERE "line"."lane" IS NOT NULL AND (
    "lane"."running" <> "own"."running" OR
    "lane"."awake" IS NULL OR "lane"."awake" = FALSE OR "lane"."policy" <> {policy}
)
LIMIT %(limit)s
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


def answer_alarms(*, using: str, now: datetime | None = None) -> bool:
    """
    Do what is due: admit scheduled tasks, take back lapsed leases, wake lanes.

    Do so much of it and no more; return whether some is left. Costs one index look-up
    when nothing is due.
    """
    return ringing(using=using, now=now) and answer_ringing(using=using, now=now)


def answer_ringing(*, using: str, now: datetime | None = None) -> bool:
    """Do the same where an alarm is known to ring."""
    return all(answer_batch(using=using, now=now) == BATCH for _ in range(BATCHES))


@repeated
def ringing(*, using: str, now: datetime | None) -> bool:
    with reading(using) as (cursor, dialect):
        return dialect.execute(cursor, RINGING, now=now).fetchone() is not None


@repeated
def answer_batch(*, using: str, now: datetime | None) -> int:
    lasting = is_callers(connections[using])
    with unit(using) as (cursor, dialect):
        statement = RUNG.replace(
            "{asynchronous_commit}", "" if lasting else dialect.asynchronous_commit
        )
        statement += dialect.skip_clause()
        rows = dialect.execute(cursor, statement, {"limit": BATCH}, now=now).fetchall()
        rung = [row[:3] for row in rows]
        accounts = Accounts(now)
        lapsed = [task_id for task_id, _lane, state in rung if state == State.RUNNING]
        back = lose(cursor, dialect, accounts, lapsed, now=now)
        back += [task_id for task_id, _lane, state in rung if state != State.RUNNING]
        admit(cursor, dialect, back, accounts)
        accounts.write(cursor, dialect)
        return len(rung)


@repeated
def rouse(*, using: str) -> int:
    """
    Wake the lanes that sleep although they have waiting tickets, those that have another
    policy than the settings say, and those behind a gate whose copy of their account is
    old: it was made while the account was charged. Return how many.

    A submit marks its ticket when it sees its lane asleep. One that saw it awake and
    committed after the lane had fallen asleep is found here.
    """
    with reading(using) as (cursor, dialect):
        ids = asleep(cursor, dialect)
    if not ids:
        return 0
    with unit(using) as (cursor, dialect):
        return wake(cursor, dialect, owners_of(cursor, dialect, ids))


def asleep(cursor: Any, dialect: Dialect) -> list[int]:
    """Return the first waiting ticket of each lane that is to be woken."""
    policy, names = policies()
    statement = SLEEPING.replace("{waiting_lanes}", dialect.waiting_lanes())
    statement = statement.replace("{policy}", policy)
    in_lane = dialect.in_lane.replace("{lane}", '"line"."lane"')
    statement = statement.replace("{in_lane}", in_lane)
    rows = dialect.execute(cursor, statement, {"limit": BATCH, **names}).fetchall()
    return [task_id for (task_id,) in rows if task_id is not None]


def policies() -> tuple[str, dict[str, str]]:
    """Return the SQL of the policy that a lane should have, and its parameters."""
    queues = options().queues_with_policy()
    if not queues:
        return str(rule_of(OTHERS).code.value), {}
    names = {f"queue{number}": queue for number, queue in enumerate(queues)}
    cases = (f"WHEN %({name})s THEN {rule_of(queue).code}" for name, queue in names.items())
    return f'CASE "lane"."queue" {" ".join(cases)} ELSE {rule_of(OTHERS).code} END', names


def admit(cursor: Any, dialect: Dialect, ids: list[int], accounts: Accounts) -> None:
    """Let tickets wait in their lanes, and wake those; lock first what is to be charged."""
    owners = owners_of(cursor, dialect, ids) if ids else []
    if owners:
        accounts.gated = any(owner.gated for owner in owners)
    accounts.lock(cursor, dialect, {owner.account for owner in owners})
    if ids:
        dialect.execute(cursor, READMIT.replace("{ids}", numbers(sorted(ids))))
        wake(cursor, dialect, owners)


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
