"""The lanes of users behind limits, and what stands behind the wrong ones."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from django_perfectqueue.lib.stored_json import names_in

from ..arithmetic.fair_order import LANES_PROBED, LaneHead, UserLanes, lane_of, part_of, turn_of
from ..arithmetic.rate_limit import UNBOUNDED, Allowance, key_of, scoped, split
from ..arithmetic.rate_limit import named as listed
from ..database.dialects.base import Row
from ..lanes.accounts import known, note_owner
from ..limits.holds import DueHold, SeenLane, due_holds
from ..limits.meters import read_rules
from ..values import Lease

if TYPE_CHECKING:
    from .lanes import Lanes


# What a claim reads of an account.


class AccountRow(NamedTuple):
    """The columns of an account that decide whose turn it is."""

    id: int
    virtual_time: float
    cost: float
    weight: float
    max_running: int | None
    running: int
    policy: int
    has_waiting: bool
    has_open: bool


COLUMNS = ", ".join(f'"own"."{name}"' for name in AccountRow._fields)


def named(rows: Iterable[Row]) -> list[AccountRow]:
    """Return rows as a cursor gives them by the names of their columns; any others are left out."""
    return [tuple.__new__(AccountRow, row[: len(AccountRow._fields)]) for row in rows]


OPEN = """
SELECT "id", "account", "keys" FROM "perfectqueue_lane"
WHERE "account" IN ({accounts}) AND "held_by" = 0 AND "has_waiting" = TRUE LIMIT %(most)s
"""
OPEN_FIRST = """
SELECT * FROM (
    SELECT "id", "account", "keys" FROM "perfectqueue_lane"
    WHERE "account" = {id} AND "held_by" = 0 AND "has_waiting" = TRUE
    ORDER BY "since" LIMIT {count}
) AS "open"
"""
KEYS = """
SELECT * FROM (
    SELECT "keys" FROM "perfectqueue_lane" WHERE "held_by" = {held_by}
    ORDER BY "turn", "since" LIMIT {count}
) AS "held"
"""
UNDER = f"""
SELECT * FROM (
    SELECT "lane"."id" AS "lane", "lane"."keys", {{held_by}} AS "held_by", "lane"."turn" AS "filed",
        "own"."paused", "own"."since", {COLUMNS}
    FROM (
        SELECT "id", "account", "keys", "turn" FROM "perfectqueue_lane"
        WHERE "held_by" = {{held_by}} AND "id" NOT IN ({{seen}})
        ORDER BY "turn", "since" LIMIT {{count}}
    ) AS "lane"
    JOIN "perfectqueue_account" AS "own" ON "own"."id" = "lane"."account"
) AS "held"
"""
# So many lanes more than a limit lets start are read: some have been filed too far in front.
FRONT = 4
TICKETS = """
SELECT * FROM (
    SELECT "lane", "rank", "run_at", "task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "state" = 0 AND "lane" = {id} ORDER BY "rank", "run_at", "task_id" LIMIT {count}
) AS "line"
"""
MOVE = """
UPDATE "perfectqueue_ticket"
SET "lane" = CASE "task_id" {lanes} END, "state" = 1, "timer_at" = {now},
    "attempt" = "attempt" - 1, "holder" = NULL
WHERE "task_id" IN ({ids})
"""


class HeldLane(NamedTuple):
    """A lane under a hold, by which turn it is filed there, and its user's pause and ``since``."""

    lane: int
    keys: str
    held_by: int
    filed: float
    paused: bool
    since: datetime


@dataclass(slots=True)
class Limits:
    """
    What limits let one transaction start, and what it lets through.

    Of each queue it reads the first users with their open lanes, of each user at most ``count``,
    those that have waited longest, and of the holds that are due as many lanes as their limits
    let start, at most ``count``. It locks the meters of
    these limits at once, before any account: so what they allow is exact, and no two
    transactions wait for each other in a ring. ``unlocked`` means that there are lanes whose
    limits it has not locked, or may be more holds that are due; ``more`` that there may be
    lanes it has not read. ``scoped`` says whether there are limits that no task lists.

    ``lanes`` are the lanes of each account that were read, and ``asked`` the accounts of which
    those are that nothing holds back. ``held`` are the accounts of each queue with lanes under
    due holds, and ``late`` the lanes of each account that are filed too early. ``keys`` are those
    of the limits of each lane that was read, and ``left`` how many tickets of it.
    """

    by: Lanes
    count: int
    scoped: bool
    paused: set[int] = field(default_factory=set)
    due: list[DueHold] = field(default_factory=list)
    allowed: dict[str, Allowance] = field(default_factory=dict)
    lanes: defaultdict[int, dict[int, SeenLane]] = field(default_factory=lambda: defaultdict(dict))
    held: defaultdict[str, list[AccountRow]] = field(default_factory=lambda: defaultdict(list))
    asked: set[int] = field(default_factory=set)
    keys: dict[int, Sequence[str]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    late: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    unlocked: bool = False
    more: bool = False

    def enter(self, *, due: bool) -> None:
        """Read the first users of all queues with their lanes, and lock the limits of these."""
        by, request = self.by, self.by.request
        for queue in request.queues:
            if queue not in by.ahead:
                by.read_ahead(queue, self.count)
        self.due = due_holds(by.db, request.queues, self.count) if due else []
        self.read_open(request.queues)
        keys = {key for own in self.keys.values() for key in own}
        # What is held is read for its other limits: it is read again under the lock.
        each = min(self.count, LANES_PROBED // max(1, len(self.due)))
        for (text,) in self.under(KEYS, {hold.id: each for hold in self.due}):
            keys.update(names_in(text))
        keys |= {hold.key for hold in self.due} | by.accounts.keys(by.db)
        self.allowed = by.accounts.meters.lock(by.db, keys)
        self.read_due(self.due, {hold.id: self.room(hold.key) for hold in self.due})
        self.unlocked = len(self.due) >= self.count
        self.more = self.more or bool([hold for hold in self.due if hold.more])
        by.accounts.holds.due = self.due

    def rows(self, queue: str) -> list[AccountRow]:
        """Return the next users of a queue, those with lanes under due holds among them."""
        if self.by.again:
            self.read_open([queue])
            due = [hold for hold in self.due if hold.queue == queue]
            # More than may start: some are empty.
            self.read_due(due, {hold.id: self.count for hold in due})
        rows = self.by.ahead[queue]
        if held := self.held[queue]:
            rows = list({row.id: row for row in (*rows, *held)}.values())
            rows.sort(key=turn_of)
        return rows

    def read_open(self, queues: Sequence[str]) -> None:
        """Read the lanes of the users ahead that nothing holds back."""
        self.more = self.more or not self.by.cut.isdisjoint(queues)
        queue_of = {
            row.id: queue
            for queue in queues
            for row in self.by.ahead[queue]
            if row.has_open and row.id not in self.asked
        }
        if queue_of:
            self.asked.update(queue_of)
            for lane, account, keys in self.first_open(list(queue_of)):
                self.keys[lane] = own = note_owner(lane, account, keys).keys
                self.lanes[account][lane] = SeenLane(queue_of[account], own, 0, ready=True)

    def first_open(self, accounts: Sequence[int]) -> list[Row]:
        """Return the first open lanes of these accounts; a user may have a lane for each name."""
        db, most, rows = self.by.db, self.count * len(accounts), list[Row]()
        if len(accounts) > 1:
            rows = db.rows(OPEN, {"most": most}, accounts=accounts)
            if len(rows) < most:
                return rows
        each = max(LANES_PROBED // len(accounts), 1) if self.by.wide else self.count
        rows = db.of_each(OPEN_FIRST.replace("{count}", str(each)), accounts)
        self.more = self.more or len(rows) >= each
        return rows

    def read_due(self, holds: Sequence[DueHold], counts: Mapping[int, int]) -> None:
        """Read so many more lanes under each hold whose limit lets some start."""
        open_ = {hold.id: hold for hold in holds if self.room(hold.key)}
        counts = {id_: min(counts[id_], self.count) for id_ in open_}
        by_hold = defaultdict(list)
        for row in self.under(UNDER, {id_: count + FRONT for id_, count in counts.items()}):
            held = HeldLane(*row[: len(HeldLane._fields)])
            by_hold[held.held_by].append((held, AccountRow(*row[len(held) :])))
        for id_, hold in open_.items():
            self.take_in(hold, by_hold[id_], counts[id_])

    def under(self, statement: str, counts: Mapping[int, int]) -> list[Row]:
        """Read the first so many lanes under each hold."""
        seen = [0, *[lane for hold in self.due for lane in hold.lanes]]
        statements = [
            statement.replace("{held_by}", str(id_)).replace("{count}", str(count))
            for id_, count in counts.items()
        ]
        return self.by.db.union(statements, seen=seen)

    def take_in(
        self, hold: DueHold, rows: Sequence[tuple[HeldLane, AccountRow]], room: int
    ) -> None:
        """
        Have the first lanes under a hold served, as many as it has room for.

        Who has been served since it was filed may stand too far in front: behind the last one
        that was read, others may come before it, and it is filed anew.
        """
        last = max(held.filed for held, _own in rows) if len(rows) == room + FRONT else math.inf
        taken: list[int] = []
        for held, own in sorted(rows, key=lambda row: (turn_of(row[1]), row[0].since)):
            if turn_of(own) > last:
                self.late[own.id].add(held.lane)
            elif len(taken) < room:
                taken.append(held.lane)
                full = own.max_running is not None and own.running >= own.max_running
                ready = not (held.paused or full)
                self.keys[held.lane] = keys = note_owner(held.lane, own.id, held.keys).keys
                self.lanes[own.id][held.lane] = SeenLane(hold.queue, keys, hold.id, ready)
            else:
                continue
            if held.paused:
                self.paused.add(own.id)
            self.held[hold.queue].append(own)
            # No lane of it was left before.
            self.by.closed.discard(own.id)
        hold.lanes += taken
        hold.more = len(rows) > len(taken)

    def has_more(self, queue: str) -> bool:
        """Return whether lanes were not read of a queue that may have room."""
        holds = [hold for hold in self.due if hold.queue == queue and hold.more]
        return queue in self.by.cut or bool([hold for hold in holds if self.room(hold.key)])

    def room(self, key: str) -> int:
        return self.allowed[key].room if key in self.allowed else UNBOUNDED

    def rooms(self) -> dict[str, int]:
        """Return how many tasks each limit lets start now, of one batch."""
        serial = self.by.request.serial
        return {
            key: part_of(allowance.room, serial) if allowance.room else 0
            for key, allowance in self.allowed.items()
        }

    def heads(self, rows: Sequence[AccountRow]) -> dict[int, Sequence[LaneHead]]:
        """Return the lanes of each user that has some; with none it has only the plain one."""
        by, holds = self.by, self.by.accounts.holds
        locked = by.accounts.meters.locked
        found: dict[int, Sequence[LaneHead]] = {}
        for row in rows:
            holds.late |= self.late.get(row.id, set())
            seen = self.lanes.get(row.id, {})
            if row.has_open and not seen:
                by.accounts.look_up.add(row.id)
            # What their limits let start in the end decides about their holds.
            holds.seen |= seen
            own = [lane for lane in seen if lane not in by.passed]
            behind = [lane for lane in own if not locked.issuperset(seen[lane].keys)]
            if behind:
                self.unlocked = True
                by.passed.update(behind)
            plain = [LaneHead(row.id)] if row.has_waiting and row.id not in by.passed else []
            heads = plain + [LaneHead(lane, seen[lane].keys) for lane in own if lane not in behind]
            if heads and row.id not in self.paused:
                found[row.id] = () if heads == plain and not by.again else heads
        return found

    def read_tickets(self, users: Sequence[UserLanes], count: int) -> None:
        """
        Read how the first tickets sort where a user has several lanes; note empty ones. Where
        some were empty before, look at each lane.
        """
        heads = [
            head for user in users if self.by.again or len(user.heads) > 1 for head in user.heads
        ]
        if not heads:
            return
        # One more tells which lanes are empty once these are taken.
        statement = TICKETS.replace("{count}", str(count + 1))
        tickets = defaultdict(list)
        # Two users have one lane where its row was damaged.
        for lane, *ticket in self.by.db.of_each(statement, {head.lane for head in heads}):
            tickets[lane].append(tuple(ticket))
        for head in heads:
            head.tickets = sorted(tickets[head.lane])
            self.left[head.lane] = len(head.tickets)
            if not head.tickets:
                self.by.accounts.found_short(head.lane)

    def let_through(self, leases: list[Lease]) -> list[Lease]:
        """
        Return what stays taken, and count that against the limits.

        What stands in a lane that leaves out a limit which holds for it, one that was made
        after it was submitted, is moved to its own lane, to be woken by its timer.
        """
        if misplaced := self.misplaced(leases):
            self.move(misplaced)
            # Who has more of what is to be moved must not hold up the others.
            self.by.passed.update(lease.lane for lease in misplaced)
            leases = [lease for lease in leases if lease not in misplaced]
        for lane, count in Counter([lease.lane for lease in leases]).items():
            if self.left.get(lane) == count:
                self.by.accounts.found_short(lane)
            for key in self.keys.get(lane, ()):
                if key in self.allowed:
                    self.allowed[key].begin(count)
        return leases

    def misplaced(self, leases: list[Lease]) -> dict[Lease, set[str]]:
        """Return what leaves out limits that hold for it, with the keys of these."""
        left_out = {}
        alike = attrgetter("lane", "limits", "queue", "type", "user")
        for (lane, names, *scope), some in groupby(sorted(leases, key=alike), alike):
            keys = listed(split(names)) | (scoped(*scope) if self.scoped else set())
            if keys := keys.difference(self.keys.get(lane, ())):
                left_out.update(dict.fromkeys(some, keys))
        if not left_out:
            return {}
        held_by = read_rules(self.by.db, set().union(*left_out.values()))[1].keys()
        return {lease: keys & held_by for lease, keys in left_out.items() if keys & held_by}

    def move(self, misplaced: dict[Lease, set[str]]) -> None:
        lanes = []
        for lease, keys in misplaced.items():
            own = sorted(keys.union(self.keys.get(lease.lane, ())))
            lanes.append(f"WHEN {lease.task_id} THEN {lane_of(lease.queue, lease.user, own)}")
            self.by.accounts.end(lease, None)
        ids = sorted(lease.task_id for lease in misplaced)
        self.by.db.execute(MOVE, lanes=" ".join(lanes), ids=ids)
        self.by.moved += len(misplaced)


def unlimited(leases: Iterable[Lease]) -> set[str]:
    """Return the names that tasks list which were just taken, and that no limit holds for."""
    names = set()
    for lease in leases:
        keys = known[lease.lane].keys if lease.lane in known else ()
        names |= {name for name in split(lease.limits) if key_of("name", name) not in keys}
    return names
