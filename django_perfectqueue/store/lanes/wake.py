"""Wake the lanes in which tickets wait, each at its place in the fair order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from django_perfectqueue.models import Policy

from ..arithmetic.fair_order import gate_id, is_gated, lane_id, unmeasured
from ..arithmetic.limit_keys import Keys, split, standing
from ..arithmetic.policies import rule_of
from ..database.session import Session
from ..database.transaction import in_transaction, reading, retry_transaction
from ..limits.holds import hold_id
from .share_sync import look_again
from .shares import Share, shares_of

SOME = 500
LAST = 8
"""From how many of the lanes that were served last the usual cost is taken."""

OWNERS = """
SELECT "ticket"."lane", "task"."queue", "task"."user", "task"."type", "task"."limits",
    {run_at}, {created_at}, "lane"."id" IS NULL,
    EXISTS (
        SELECT 1 FROM "perfectqueue_lane" AS "copy"
        WHERE "copy"."account" = "ticket"."lane" AND NOT ("copy"."gate" = 0)
    )
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
WHERE "ticket"."task_id" IN ({ids})
"""
WAITS_ASLEEP = ' AND "ticket"."state" = 0 AND COALESCE("lane"."has_waiting", FALSE) = FALSE'
FIRST_OPEN = """
SELECT "virtual_time" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "held_by" = {hold} AND "ready" = TRUE{alike}
ORDER BY "turn" LIMIT 1
"""
SERVED_LAST = f"""
SELECT "virtual_time", "ready" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "gate" = %(gate)s AND "finish_tag" > 0.0{{alike}}
ORDER BY "finish_tag" DESC LIMIT {LAST}
"""
BEHIND = f"""
SELECT MIN("virtual_time") FROM (
    SELECT "virtual_time" FROM ({SERVED_LAST}) AS "served" WHERE "ready" = TRUE{{held_by}}
) AS "behind"
"""
LAST_SHUT = """
SELECT "virtual_time" FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "held_by" = 0 AND "ready" = FALSE ORDER BY "turn" DESC LIMIT 1
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
LANE = '"perfectqueue_lane"'
INSERT = """
INSERT INTO "perfectqueue_lane" ("running", {columns}) VALUES {rows}
"""
FLOOR = f"SELECT ({CLOCK}), ({FIRST_OPEN}), ({LAST_SHUT}), ({USUAL})".replace("{hold}", "0")


@dataclass(frozen=True, slots=True)
class Owner:
    """
    Whose a lane is: its queue, user and limits, and the lane whose account it has.

    ``since`` is when the first of the tickets was due that are to wait there; no earlier
    than it was submitted, so that no one passes others by a time of their choice.
    ``is_new`` means that it has no row, and ``copied`` whether lanes have copies of it.
    """

    lane: int
    account: int
    queue: str
    user: str
    keys: Keys
    since: datetime
    is_new: bool
    copied: bool

    @property
    def gate(self) -> int:
        return gate_id(self.queue, self.keys)


class Waking(NamedTuple):
    """
    A lane that has waiting tickets, as it is to be if it has no row yet or sleeps.

    ``keys`` are those of its limits as JSON, None without any. ``since`` is when the first of
    its tickets was due; None is now.
    """

    id: int
    account: int
    gate: int
    keys: str | None
    queue: str
    user: str
    virtual_time: float
    cost: float
    weight: float
    max_running: int | None
    paused: bool
    policy: int
    has_waiting: bool = True
    since: datetime | None = None


class Floor(NamedTuple):
    """The virtual time of a queue, and what its tasks usually cost, in seconds."""

    virtual_time: float
    usual: float


@retry_transaction
def wake_sleeping(lanes: Mapping[int, int], *, using: str) -> None:
    """Wake those of these lanes, each given with a task in it, that sleep though it waits."""
    every = list(lanes.values())
    for first in range(0, len(every), SOME):
        with reading(using) as db:
            ids = every[first : first + SOME]
            owners = owners_of(db, ids, WAITS_ASLEEP)
        if owners:
            # Where there are no limits, one statement writes it, and commits itself.
            opened = (
                in_transaction if any(owner.gate or owner.copied for owner in owners) else reading
            )
            with opened(using) as db:
                wake(db, owners, None)


def owners_of(db: Session, ids: Sequence[int], condition: str = "") -> list[Owner]:
    """Return the owner of each lane in which these tickets stand."""
    # As parameters, so that SQLite knows the statement again.
    given = {f"id_{number}": task_id for number, task_id in enumerate(ids)}
    marks = ", ".join([f"%({name})s" for name in given])
    statement = OWNERS.replace("{ids}", marks) + condition
    statement = statement.replace("{run_at}", db.dialect.readable('"ticket"."run_at"'))
    statement = statement.replace("{created_at}", db.dialect.readable('"task"."created_at"'))
    rows = db.execute(statement, given).fetchall()
    owners: dict[int, Owner] = {}
    for lane, queue, user, type_, limits, run_at, created_at, is_new, copied in rows:
        since = max(db.dialect.moment(run_at), db.dialect.moment(created_at))
        if lane in owners:
            owners[lane] = replace(owners[lane], since=min(owners[lane].since, since))
        else:
            names = split(limits) if is_gated(lane) else []
            owner, keys = standing(lane, queue, type_, user, names)
            account = lane_id(queue, owner) if keys else lane
            whose = lane, account, queue, owner, keys
            owners[lane] = Owner(*whose, since, bool(is_new), bool(copied))
    return list(owners.values())


def wake(db: Session, owners: list[Owner], now: datetime | None) -> int:
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
        shares.update(shares_of(db, fresh))
    places = {(owner.queue, owner.keys) for owner in owners}
    known: dict[str, Floor] = {}
    floors = {place: floor(db, *place, known) for place in places}

    def waking(owner: Owner, lane: int, gate: int, *, has_waiting: bool = True) -> Waking:
        share = shares[owner.queue, owner.user]
        return Waking(
            id=lane,
            account=owner.account,
            gate=gate,
            queue=owner.queue,
            user=owner.user,
            keys=json.dumps(owner.keys) if gate else None,
            virtual_time=floors[owner.queue, owner.keys].virtual_time,
            cost=unmeasured(share.weight, floors[owner.queue, owner.keys].usual),
            weight=share.weight,
            max_running=share.max_running,
            paused=share.paused,
            policy=rule_of(owner.queue).code,
            since=owner.since,
            has_waiting=has_waiting,
        )

    behind = sorted((owner for owner in owners if owner.gate), key=lambda owner: owner.lane)
    own = {owner.account: waking(owner, owner.account, 0, has_waiting=False) for owner in behind}
    own |= {owner.lane: waking(owner, owner.lane, 0) for owner in owners if not owner.gate}
    write_lanes(db, [own[lane] for lane in sorted(own)], now)
    if behind:
        write_lanes(db, [waking(owner, owner.lane, owner.gate) for owner in behind], now)
    if behind or any(owner.copied for owner in owners):
        db.dialect.copy_accounts(db.cursor, own)
    if fresh:
        look_again(db.cursor, sorted({owner.account for owner in owners if owner.is_new}))
    return len(owners)


def write_lanes(db: Session, lanes: Sequence[Waking], now: datetime | None) -> None:
    """
    Make or wake lanes, in the order of their ids; lock them even where nothing changes.

    A lane that comes from another policy takes its place by this one, whether or not it has
    waiting tickets.
    """
    new = db.dialect.inserted
    moved = f'{LANE}."policy" <> {new("policy")}'
    waits = f'{LANE}."has_waiting"'
    furthest = "CASE WHEN {old} > {new} THEN {old} ELSE {new} END"
    changes = {
        "since": f"CASE WHEN {waits} THEN {{old}} ELSE {{new}} END",
        "virtual_time": f"CASE WHEN {moved} THEN {{new}} WHEN {waits} THEN {{old}}"
        f" ELSE {furthest} END",
        "has_waiting": "{old} OR {new}",
        "policy": "{new}",
    }
    values: dict[str, object] = {}
    rows = []
    for number, lane in enumerate(lanes):
        items = [
            sql_of(db, f"{name}{number}", getattr(lane, name), values) for name in Waking._fields
        ]
        rows.append(f"(0, {', '.join(items)})")
    statement = INSERT.replace("{columns}", ", ".join(f'"{name}"' for name in Waking._fields))
    statement = statement.replace("{rows}", ", ".join(rows))
    statement += db.dialect.upsert(
        "perfectqueue_lane", ["id"], changes, where=f"NOT {waits} OR {moved}"
    )
    if db.dialect.asynchronous_commit and db.cursor.db.autocommit:
        # A crash may forget it where it is a transaction by itself: the sweep wakes them then.
        statement += ' RETURNING "id"' + db.dialect.asynchronous_commit
    db.execute(statement, values, now=now)


def sql_of(db: Session, name: str, value: object, values: dict[str, object]) -> str:
    """Return a column's value as SQL, or as a parameter that is added to ``values``."""
    if value is None:
        return "{now}" if name.startswith("since") else "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return repr(value + 0)  # The number, where it is one of an enumeration.
    values[name] = db.dialect.parameter(value) if isinstance(value, datetime) else value
    return f"%({name})s"


def floor(db: Session, queue: str, keys: Keys = (), known: dict[str, Floor] | None = None) -> Floor:
    """
    Return where a lane that wakes takes its place, by the limits to which its tasks keep.

    Its virtual time is the last finish tag of the tasks that have ended, as in self-clocked fair
    queueing (Golestani, 1994): so it moves with the service that is given, and those who
    wait are not passed for ever by others who come. It is no less than the virtual time of
    the lane that is served next, of those that nothing holds back. Where none is open, it
    is the largest virtual time that was reached, so that neither credit nor debt outlives
    the work that competed. Lanes that have yet to come from a policy without memory have no
    say in it.

    Where others wait for the same limits, it is compared with these: its virtual time is the
    last finish tag of tasks with the same limits, and no less than that of those who wait.
    ``known`` keeps what was found of a queue.
    """
    known = {} if known is None else known
    if queue not in known:
        statement = FLOOR.replace("{alike}", alike(queue))
        row = db.execute(statement, {"queue": queue, "gate": 0}).fetchone()
        clock, first, reached, usual = row
        least = (reached or 0.0) if first is None else first
        known[queue] = Floor(max(clock or 0.0, least), usual or 0.0)
    if not keys:
        return known[queue]
    row = db.execute(behind(queue, keys), place_of(queue, keys)).fetchone()
    clock, first, usual = row
    if first is None:
        return Floor(known[queue].virtual_time, usual or 0.0)
    return Floor(max(clock or 0.0, first), usual or 0.0)


def place_of(queue: str, keys: Keys) -> dict[str, object]:
    return {"queue": queue, "gate": gate_id(queue, keys)}


def behind(queue: str, keys: Keys) -> str:
    """
    Return the query of the clock of these limits, of the smallest virtual time of those who
    wait for them, and of what their tasks usually cost.

    Those who wait are whom one of these limits holds back, and who was served last of all
    with the same limits.
    """
    held = "".join(
        f' UNION ALL SELECT "virtual_time" FROM ({FIRST_OPEN}) AS "held{number}"'.replace(
            "{hold}", str(hold_id(queue, key))
        )
        for number, key in enumerate(keys)
    )
    first = BEHIND.replace("{held_by}", held).replace("{alike}", alike(queue))
    return f"SELECT ({CLOCK}), ({first}), ({USUAL})"


def first_open(db: Session, queue: str) -> float | None:
    """Return the virtual time of the lane that is served next, of those nothing holds back."""
    statement = FIRST_OPEN.replace("{alike}", alike(queue)).replace("{hold}", "0")
    row = db.execute(statement, {"queue": queue}).fetchone()
    return row and float(row[0])


def alike(queue: str) -> str:
    """Return the condition that leaves out lanes without virtual time where others have it."""
    by_time = rule_of(queue).code == Policy.FAIR
    return f' AND "policy" = {Policy.FAIR}' if by_time else ""
