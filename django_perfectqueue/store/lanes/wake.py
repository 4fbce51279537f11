"""Wake the lanes in which tickets wait, each at its place in the fair order."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from django_perfectqueue.models import EVERYONE, Policy

from ..arithmetic.fair_order import gate_id, is_gated, lane_id, rule_of, unmeasured
from ..arithmetic.rate_limit import Keys, split, standing
from ..database.transaction import Session, in_transaction, reading, retry_transaction
from ..limits.holds import hold_id
from ..values import Watermarks
from .accounts import LAST, OPEN
from .shares import COLUMNS, Share, chosen, look_again

SOME = 500

OWNERS = """
SELECT "ticket"."lane", "task"."queue", "task"."user", "task"."type", "task"."limits",
    "ticket"."run_at", "task"."created_at", "own"."id" IS NULL AND "lane"."id" IS NULL
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
LEFT JOIN "perfectqueue_account" AS "own" ON "own"."id" = "ticket"."lane"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
WHERE "ticket"."task_id" IN ({ids})
"""
WAITS_ASLEEP = """
    AND "ticket"."state" = 0
    AND COALESCE("own"."has_waiting", "lane"."has_waiting", FALSE) = FALSE
"""
# How far an account has come, about: what it is charged in advance for tasks that run is no service
# yet, and is given back where they end early or yield.
REACHED = '("own"."virtual_time" - "own"."advance" / "own"."weight")'
# With the last of several tasks its tag may be further than it has come with all of them.
CLOCK = f"CASE WHEN {{tag}} < {REACHED} THEN {{tag}} ELSE {REACHED} END"
FIRST_OPEN = f"""
SELECT {REACHED} FROM "perfectqueue_account" AS "own"
WHERE "queue" = %(queue)s AND "ready" = TRUE{{from_turn}}{{alike}} ORDER BY "turn" LIMIT 1
"""
LAST_SHUT = """
SELECT "turn" / 1000.0 FROM "perfectqueue_account"
WHERE "queue" = %(queue)s AND "ready" = FALSE ORDER BY "turn" DESC LIMIT 1
"""
LANES = """
FROM "perfectqueue_lane" AS "lane"
JOIN "perfectqueue_account" AS "own" ON "own"."id" = "lane"."account"
WHERE "lane".{which}{alike} ORDER BY "lane".{order} LIMIT {count}
"""
OF_QUEUE = f"""
SELECT * FROM "perfectqueue_account" WHERE "queue" = %(queue)s AND "finish_tag" > 0.0
ORDER BY "finish_tag" DESC LIMIT {LAST}
"""
OF_GATE = LANES.replace("{which}", '"gate" = %(gate)s AND "lane"."finish_tag" > 0.0')
OF_GATE = OF_GATE.replace("{order}", '"finish_tag" DESC')
UNDER = LANES.replace("{which}", '"held_by" = {hold}').replace("{order}", '"turn"')
# One row for each share of these users, and one where they have none.
FLOOR = f"""
SELECT "floor".*, {COLUMNS} FROM (
    SELECT MAX({CLOCK.replace("{tag}", '"finish_tag"')}) AS "clock",
        COALESCE(({FIRST_OPEN}), ({LAST_SHUT})) AS "least",
        AVG(CASE WHEN "cost" > 0 THEN "cost" END) AS "usual"
    FROM ({OF_QUEUE}) AS "own"
) AS "floor"
LEFT JOIN "perfectqueue_fairshare" ON "queue" IN (%(queue)s, '') AND "user" IN ({{users}})
"""
OF_WAITING = f"""
SELECT {REACHED} AS "virtual_time", "lane"."has_waiting" AND NOT "own"."paused"
    AND ("own"."max_running" IS NULL OR "own"."running" < "own"."max_running") AS "waits"
"""
SERVED = OF_GATE.replace("{count}", str(LAST)).replace("{alike}", "")
BEHIND = f"""
SELECT (
    SELECT MAX("clock") FROM (
        SELECT {CLOCK.replace("{tag}", '"lane"."finish_tag"')} AS "clock" {SERVED}
    ) AS "last"
), (
    SELECT MIN("virtual_time") FROM (
        SELECT * FROM ({OF_WAITING} {OF_GATE.replace("{count}", str(LAST))}) AS "served"
        {{held_by}}
    ) AS "behind" WHERE "waits" = TRUE
)
"""
HELD = f"""
UNION ALL SELECT * FROM ({OF_WAITING} {UNDER.replace("{count}", str(LAST))}) AS "held_{{number}}"
"""
LANE = '"perfectqueue_account"'
INSERT = 'INSERT INTO "{table}" ({columns}) VALUES {rows}'
Columns = dict[str, object]


@dataclass(frozen=True, slots=True)
class Owner:
    """
    Whose a lane is: its queue, user and limits, and the account that is charged.

    ``since`` is when the first of the tickets was due that are to wait there; no earlier
    than it was submitted, so that no one passes others by a time of their choice.
    ``is_new`` means that it has no row.
    """

    lane: int
    account: int
    queue: str
    user: str
    keys: Keys
    since: datetime
    is_new: bool

    @property
    def gate(self) -> int:
        return gate_id(self.queue, self.keys)


# In seconds, what reading a floor may take more than a claim before it is slow.
MAY_TAKE = 0.015
# By database the marks of those who read a floor.
fronts: defaultdict[str, Watermarks] = defaultdict(lambda: Watermarks(taken=Watermarks.MANY))


class Floor(NamedTuple):
    """
    The virtual time of a queue, what its tasks usually cost, in seconds, and the shares of
    some users in it.
    """

    virtual_time: float
    usual: float
    shares: Mapping[str, Share]


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
            opened = in_transaction if any(owner.gate for owner in owners) else reading
            with opened(using) as db:
                wake(db, owners)


def owners_of(db: Session, ids: Sequence[int], condition: str = "") -> list[Owner]:
    """Return the owner of each lane in which these tickets stand."""
    # As parameters, so that SQLite knows the statement again.
    given = {f"id_{number}": task_id for number, task_id in enumerate(ids)}
    marks = ", ".join([f"%({name})s" for name in given])
    statement = OWNERS.replace("{ids}", marks) + condition
    rows = db.execute(statement, given).fetchall()
    owners: dict[int, Owner] = {}
    for lane, queue, user, type_, limits, run_at, created_at, is_new in rows:
        since = max(db.dialect.moment(run_at), db.dialect.moment(created_at))
        if lane in owners:
            owners[lane] = replace(owners[lane], since=min(owners[lane].since, since))
        else:
            names = split(limits) if is_gated(lane) else []
            owner, keys = standing(lane, queue, type_, user, names)
            account = lane_id(queue, owner) if keys else lane
            whose = lane, account, queue, owner, keys
            owners[lane] = Owner(*whose, since, bool(is_new))
    return list(owners.values())


def wake(db: Session, owners: list[Owner]) -> int:
    """
    Wake lanes, each at the virtual time of its queue, or where it was if that is later;
    return how many that is.

    A lane behind a gate is woken after its account, whose plain lane need not have waiting
    tickets.
    """
    if not owners:
        # Their tasks were deleted meanwhile.
        return 0
    users: defaultdict[str, set[str]] = defaultdict(set)
    for owner in owners:
        users[owner.queue].update([owner.user] if owner.is_new else [])
    floors = {queue: floor(db, queue, some) for queue, some in users.items()}
    starts = {
        place: behind(db, *place, floors[place[0]])
        for place in {(owner.queue, owner.keys) for owner in owners}
    }
    # Of two lanes of an account the plain one comes last, and stays.
    own: dict[int, Columns] = {}
    for owner in sorted(owners, key=lambda owner: not owner.gate):
        start = starts[owner.queue, owner.keys]
        # Who has a row already keeps the share in it.
        share = start.shares.get(owner.user, Share())
        own[owner.account] = {
            "id": owner.account,
            "queue": owner.queue,
            "user": owner.user,
            "virtual_time": start.virtual_time,
            "cost": unmeasured(share.weight, start.usual),
            **share._asdict(),
            "policy": int(rule_of(owner.queue).code),
            "since": owner.since,
            "has_waiting": not owner.gate,
            "running": 0,
        }
    write_accounts(db, list(own.values()))
    if limited := [owner for owner in owners if owner.gate]:
        write_lanes(db, limited)
    look_again(
        db.cursor,
        {
            owner.account: (owner.queue, owner.user, floors[owner.queue].shares[owner.user])
            for owner in owners
            if owner.is_new
        },
    )
    return len(owners)


def write_accounts(db: Session, accounts: Sequence[Columns]) -> None:
    """
    Make or wake accounts, in the order of their ids; lock them even where nothing changes.

    One that comes from another policy takes its place by this one, whether or not it has
    waiting tickets.
    """
    new = db.dialect.inserted
    moved = f'{LANE}."policy" <> {new("policy")}'
    waits = f'({LANE}."has_waiting" OR {LANE}."has_open")'
    furthest = "CASE WHEN {old} > {new} THEN {old} ELSE {new} END"
    changes = {
        "since": f"CASE WHEN {waits} THEN {{old}} ELSE {{new}} END",
        "virtual_time": f"CASE WHEN {moved} THEN {{new}} WHEN {waits} THEN {{old}}"
        f" ELSE {furthest} END",
        "has_waiting": "{old} OR {new}",
        "policy": "{new}",
    }
    where = f'NOT {LANE}."has_waiting" OR {moved}'
    write(db, "perfectqueue_account", accounts, changes, where)


def write_lanes(db: Session, owners: Sequence[Owner]) -> None:
    """Make or wake lanes behind limits; who calls has locked their accounts."""
    lanes: list[Columns] = [
        {
            "id": owner.lane,
            "account": owner.account,
            "keys": json.dumps(owner.keys),
            "gate": owner.gate,
            "since": owner.since,
            "has_waiting": True,
        }
        for owner in owners
    ]
    changes = {"since": "{new}", "has_waiting": "{new}"}
    write(db, "perfectqueue_lane", lanes, changes, 'NOT "perfectqueue_lane"."has_waiting"')
    db.execute(OPEN, accounts=sorted({owner.account for owner in owners}))


def write(
    db: Session, table: str, rows: Sequence[Columns], changes: Mapping[str, str], where: str
) -> None:
    """Insert rows, and change those that are there already as it says."""
    rows = sorted(rows, key=itemgetter("id"))
    values = {
        f"{name}{n}": db.dialect.parameter(value) if isinstance(value, datetime) else value
        for n, row in enumerate(rows)
        for name, value in row.items()
    }
    items = [", ".join([mark_of(name, row, n) for name in row]) for n, row in enumerate(rows)]
    statement = INSERT.replace("{table}", table)
    statement = statement.replace("{columns}", ", ".join([f'"{name}"' for name in rows[0]]))
    statement = statement.replace("{rows}", ", ".join([f"({item})" for item in items]))
    statement += db.dialect.upsert(table, ["id"], changes, where=where)
    if db.dialect.asynchronous_commit and db.cursor.db.autocommit:
        # A crash may forget it where it is a transaction by itself: the sweep wakes them then.
        statement += ' RETURNING "id"' + db.dialect.asynchronous_commit
    db.unanswered.execute(statement, values)


def mark_of(name: str, row: Columns, number: int) -> str:
    """Return the SQL of a column's value in one of the rows: a parameter, or the present."""
    return "{now}" if (name, row[name]) == ("since", None) else f"%({name}{number})s"


def floor(db: Session, queue: str, users: Collection[str] = ()) -> Floor:
    """
    Return where a lane that wakes takes its place, and the shares of these users.

    Its virtual time is the last finish tag of the tasks that have ended, as in self-clocked fair
    queueing (Golestani, 1994): so it moves with the service that is given, and those who
    wait are not passed for ever by others who come. It is no less than the virtual time of
    the lane that is served next, of those that nothing holds back. Both are read as far as
    their users have come, so that what is given back later puts nobody before one who comes.
    Where none is open, it is the largest virtual time that was reached, so that neither credit
    nor debt outlives the work that competed. Lanes that have yet to come from a policy without
    memory have no say in it.
    """
    marks, began = fronts[db.using], time.monotonic()
    keeps = db.dialect.keeps_dead_entries and rule_of(queue).code == Policy.FAIR
    statement = FLOOR.replace("{alike}", alike(queue))
    statement = statement.replace("{from_turn}", marks.from_turn(queue) if keeps else "")
    asked = [*sorted(users), EVERYONE] if users else []
    rows = db.rows(statement, {"queue": queue}, users=asked)
    clock, least, usual = rows[0][:3]
    if keeps and least is not None and marks.users_read(queue, began + MAY_TAKE):
        marks.turns[queue] = least
    shares = chosen((row[3:] for row in rows), {(queue, user) for user in users})
    return Floor(
        max(clock or 0.0, least or 0.0),
        usual or 0.0,
        {user: share for (_queue, user), share in shares.items()},
    )


def behind(db: Session, queue: str, keys: Keys, start: Floor) -> Floor:
    """
    Return where a lane takes its place that keeps to limits, in a queue with this floor.

    Where others wait for the same limits, it is compared with these: its virtual time is the
    last finish tag of tasks with the same limits, and no less than that of those who wait.
    """
    if not keys:
        return start
    held = [HELD.replace("{hold}", str(hold_id(queue, key))) for key in keys]
    held_by = "".join([one.replace("{number}", str(n)) for n, one in enumerate(held)])
    statement = BEHIND.replace("{held_by}", held_by).replace("{alike}", alike(queue))
    values = {"gate": gate_id(queue, keys)}
    clock, first = db.execute(statement, values).fetchone()
    return start if first is None else start._replace(virtual_time=max(clock or 0.0, first))


def first_open(db: Session, queue: str) -> float | None:
    """Return the virtual time of the user that is served next, of those nothing holds back."""
    statement = FIRST_OPEN.replace("{alike}", alike(queue)).replace("{from_turn}", "")
    row = db.execute(statement, {"queue": queue}).fetchone()
    return row and float(row[0])


def alike(queue: str) -> str:
    """Return the condition that leaves out lanes without virtual time where others have it."""
    by_time = rule_of(queue).code == Policy.FAIR
    return f' AND "own"."policy" = {Policy.FAIR}' if by_time else ""


# When to look again for what nobody has acted on, as lanes that sleep with work in them.


# In seconds. Where a worker runs, its janitor looks every few seconds.
INTERVAL = 30.0
EVENT_INTERVAL = 5.0
PART = 100


class Rounds:
    """When to look again: after ``interval`` seconds, or after PART times as long as the last look
    took, if that is later."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.next_at = float("-inf")

    def are_due(self) -> bool:
        return time.monotonic() >= self.next_at

    def began(self, at: float) -> None:
        """Note that a look which began then has ended."""
        now = time.monotonic()
        self.next_at = now + max(self.interval, PART * (now - at))


rounds: defaultdict[str, Rounds] = defaultdict(lambda: Rounds(INTERVAL))
event_rounds: defaultdict[str, Rounds] = defaultdict(lambda: Rounds(EVENT_INTERVAL))
