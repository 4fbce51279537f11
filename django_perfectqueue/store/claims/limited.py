"""Choose among lanes behind limits, and put what stands behind the wrong ones where it belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

from django_perfectqueue.lib.stored_json import names_in

from ..arithmetic.fair_order import LANES_PROBED, OpenLane, is_gated, lane_of
from ..arithmetic.limit_keys import may_hold, split
from ..arithmetic.multi_lane import Party, Strand, has_room, party_picks
from ..arithmetic.rate_limit import UNBOUNDED, Allowance
from ..database.dialects.base import numbers
from ..database.session import Session
from ..lanes.accounts import Accounts
from ..limits.holds import DueHold, SeenLane, due_holds, union
from ..limits.meters import limits
from ..values import ClaimRequest, Lease
from .lanes import LANES_READ_AT_LEAST, Choice, LaneRow, Lanes

COLUMNS = """
    "id", "account", "held_by", "turn", "since", "keys", "queue", "ready", "virtual_time", "cost",
    "weight", "max_running", "running", "policy"
"""
FREE = f"""
SELECT * FROM (
    SELECT {COLUMNS} FROM "perfectqueue_lane"
    WHERE "queue" = %({{queue}})s AND "held_by" = 0 AND "ready" = TRUE AND "id" NOT IN ({{passed}})
    ORDER BY "turn", "since" LIMIT {{count}}
) AS "free"
"""
# Those that are paused, capped or asleep come last, and leave the hold with the others.
UNDER = f"""
SELECT * FROM (
    SELECT {COLUMNS} FROM "perfectqueue_lane"
    WHERE "queue" = %({{queue}})s AND "held_by" = {{held_by}} AND "id" NOT IN ({{passed}})
    ORDER BY "ready" DESC, "turn", "since" LIMIT {{count}}
) AS "held"
"""
HEADS = """
SELECT * FROM (
    SELECT "lane", "rank", "run_at", "task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "state" = 0 AND {in_lane} ORDER BY "rank", "run_at", "task_id" LIMIT {count}
) AS "line"
"""
MOVE = """
UPDATE "perfectqueue_ticket"
SET "lane" = CASE "task_id" {lanes} END, "state" = 1, "timer_at" = {now},
    "attempt" = "attempt" - 1, "holder" = NULL
WHERE "task_id" IN ({ids})
"""


class WaitingRow(NamedTuple):
    """The columns of a lane, of which those from ``virtual_time`` on are its account's."""

    id: int
    account: int
    held_by: int
    turn: float
    since: datetime
    keys: str | None
    queue: str
    ready: bool
    virtual_time: float
    cost: float
    weight: float
    max_running: int | None
    running: int
    policy: int

    def as_account(self) -> LaneRow:
        return LaneRow(self.account, *self[8:])


@dataclass(slots=True)
class LimitedLanes:
    """
    Which lanes of some queues a transaction may serve where limits hold some back, all lanes
    of a user as one; and what it lets through.

    Of each queue it reads the first ``count`` lanes that nothing holds back, and of the holds
    that are due as many lanes as their limits let start. It locks the meters of their limits
    at once, before any lane: so what they allow is exact, and no two transactions wait for
    each other in a ring. ``unlocked`` means that there are lanes whose limits it has not
    locked, or may be more holds that are due; ``more`` that there may be lanes it has not read.
    """

    db: Session
    accounts: Accounts
    request: ClaimRequest
    plain: Lanes
    count: int
    due: list[DueHold]
    rows: dict[str, list[WaitingRow]]
    allowed: dict[str, Allowance] = field(default_factory=dict)
    keys: dict[int, Sequence[str]] = field(default_factory=dict)
    chosen: set[str] = field(default_factory=set)
    moved: int = 0
    unlocked: bool = False
    more: bool = False
    cut: bool = False

    @classmethod
    def enter(cls, plain: Lanes, *, wide: bool) -> LimitedLanes:
        """Read the first lanes and lock their limits; with ``wide`` of many lanes."""
        db, accounts = plain.db, plain.accounts
        request, now = plain.request, plain.request.now
        count = LANES_PROBED if wide else max(request.limit, LANES_READ_AT_LEAST)
        due = due_holds(db, request.queues, count, now)
        rows: dict[str, list[WaitingRow]] = {queue: [] for queue in request.queues}
        limited = cls(db, accounts, request, plain, count, due, rows)
        # What is held is read for its other limits: it is read again under the lock.
        each = min(count, LANES_PROBED // max(1, len(due)))
        held = [limited.under(hold, each) for hold in due]
        limited.read([*map(limited.free, request.queues), *held])
        limited.rows = {
            queue: [row for row in found if not row.held_by] for queue, found in rows.items()
        }
        counted = {key for keys in limited.keys.values() for key in keys}
        counted |= {hold.key for hold in due} | accounts.keys(db)
        limited.allowed = accounts.meters.lock(db, counted, now)
        limited.read_due(due, {hold.id: limited.room(hold.key) for hold in due})
        limited.unlocked = len(due) >= count
        limited.more = any(hold.more for hold in due)
        return limited

    def choose(self, queue: str, count: int) -> Choice | None:
        """Return whom to serve next; None where no lane is left that may be served."""
        passed = self.plain.passed
        again = queue in self.chosen
        self.chosen.add(queue)
        rows = self.lanes(queue, again=again)
        self.cut = len(rows) >= self.count
        self.more = self.more or self.cut
        lanes = self.with_accounts(rows)
        for lane in [lane for lane in lanes if not self.is_locked(lane)]:
            self.unlocked = True
            passed.add(lane)
            del lanes[lane]
        parties = self.parties(lanes, count, exact=again)
        passed |= self.accounts.short & lanes.keys()
        if again:
            rooms = self.rooms()
            passed |= {lane for lane in lanes if not has_room(self.keys[lane], rooms)}
        usual = self.plain.usual_cost(queue, [party.account for party in parties])
        serial = self.request.serial
        picks = party_picks(parties, self.rooms(), count, usual=usual, serial=serial)
        if not picks:
            return None
        capped = {lane for lane, account in lanes.items() if account.room is not None}
        return Choice(picks, lanes.keys(), capped.union(filter(is_gated, lanes)))

    def with_accounts(self, rows: list[WaitingRow]) -> dict[int, OpenLane]:
        """Return lanes with their accounts, without those that can't be served."""
        known = list({row.account: row.as_account() for row in rows}.values())
        current = self.plain.current(known)
        ids = {row.id for row in current}
        self.look_at([row for row in rows if row.account in ids])
        open_ = {row.account for row in rows if row.ready}
        served = self.plain.with_room([row for row in current if row.id in open_])
        accounts = {account.id: account for account in served}
        self.plain.passed |= {row.id for row in rows if row.account not in accounts}
        return {
            row.id: accounts[row.account] for row in rows if row.ready and row.account in accounts
        }

    def free(self, queue: str) -> str:
        """Return the query of the first lanes of a queue that nothing holds back."""
        return self.first(FREE, queue, self.count)

    def under(self, hold: DueHold, count: int) -> str:
        """Return the query of the first lanes under a hold."""
        return self.first(UNDER, hold.queue, count).replace("{held_by}", str(hold.id))

    def first(self, statement: str, queue: str, count: int) -> str:
        """Complete the query of so many lanes of a queue that were not passed."""
        passed = self.plain.passed
        statement = statement.replace("{queue}", f"q{list(self.rows).index(queue)}")
        statement = statement.replace("{passed}", numbers(sorted(passed)) if passed else "0")
        return statement.replace("{count}", str(count))

    def read(self, statements: Sequence[str]) -> list[WaitingRow]:
        """Read lanes by their queues, and keep to which limits each of them keeps."""
        names = {f"q{number}": queue for number, queue in enumerate(self.rows)}
        rows = list(map(WaitingRow._make, union(self.db, statements, names)))
        for row in rows:
            self.rows[row.queue].append(row)
            self.keys[row.id] = names_in(row.keys)
        return rows

    def read_due(self, due: Sequence[DueHold], counts: Mapping[int, int]) -> None:
        """Read so many lanes, at most ``count``, under each hold whose limit lets some start."""
        open_ = [hold for hold in due if self.room(hold.key)]
        counts = {hold.id: min(counts[hold.id], self.count) for hold in open_}
        rows = self.read([self.under(hold, counts[hold.id] + 1) for hold in open_])
        for hold in open_:
            own = [row for row in rows if row.held_by == hold.id]
            read = [row.id for row in own[: counts[hold.id]]]
            hold.lanes = [*dict.fromkeys(hold.lanes + read)]
            hold.more = len(own) > len(read)
        left = {row.id for row in rows}.difference(*(hold.lanes for hold in open_))
        for queue, found in self.rows.items():
            self.rows[queue] = [row for row in found if row.id not in left]

    def has_more(self, queue: str) -> bool:
        """Return whether lanes were not read of a queue that may have room."""
        holds = [hold for hold in self.due if hold.queue == queue and hold.more]
        return self.cut or any(self.room(hold.key) for hold in holds)

    def room(self, key: str) -> int:
        return self.allowed[key].room if key in self.allowed else UNBOUNDED

    def rooms(self) -> dict[str, int]:
        """Return how many tasks each limit lets start now."""
        return {key: allowance.room for key, allowance in self.allowed.items()}

    def lanes(self, queue: str, *, again: bool) -> list[WaitingRow]:
        """Return the lanes of a queue that were read at the beginning, or read the next ones."""
        if again:
            self.rows[queue] = []
            self.read([self.free(queue)])
            due = [hold for hold in self.due if hold.queue == queue]
            # More than may start: some are empty.
            self.read_due(due, {hold.id: self.count for hold in due})
        return sorted(self.rows[queue], key=attrgetter("turn", "since", "id"))

    def look_at(self, rows: Sequence[WaitingRow]) -> None:
        """Set the holds of these lanes to what their limits let start in the end."""
        seen = [
            (
                row.id,
                row.account,
                SeenLane(row.queue, self.keys[row.id], row.held_by, bool(row.ready)),
            )
            for row in rows
            if row.keys
        ]
        self.accounts.look_at(self.due, seen)

    def is_locked(self, lane: int) -> bool:
        """Return whether the meters of all limits of a lane are locked."""
        return self.accounts.meters.locked.issuperset(self.keys[lane])

    def parties(self, lanes: Mapping[int, OpenLane], count: int, *, exact: bool) -> list[Party]:
        """
        Return lanes, each with its account, by the users whose they are.

        One that turns out to be empty is put to sleep: it is looked at beside others of its
        user, and where it is to be ``exact``, as some were empty before.
        """
        parties: dict[int, Party] = {}
        for lane, account in lanes.items():
            party = parties.setdefault(account.id, Party(account, []))
            party.strands.append(Strand(lane, self.keys[lane]))
        strands = [
            strand
            for party in parties.values()
            if exact or len(party.strands) > 1
            for strand in party.strands
        ]
        heads = self.heads([strand.lane for strand in strands], count)
        for strand in strands:
            strand.heads = heads.get(strand.lane, [])
            if not strand.heads:
                self.accounts.found_short(strand.lane)
        return list(parties.values())

    def heads(self, lanes: Sequence[int], count: int) -> dict[int, list[tuple[float, ...]]]:
        """Return how the first tickets of each lane sort."""
        if not lanes:
            return {}
        lines = []
        for lane in lanes:
            in_lane = self.db.dialect.in_lane.replace("{lane}", str(lane))
            lines.append(HEADS.replace("{in_lane}", in_lane).replace("{count}", str(count)))
        heads: dict[int, list[tuple[float, ...]]] = {}
        for lane, *head in union(self.db, lines, {}):
            heads.setdefault(lane, []).append(tuple(head))
        for line in heads.values():
            line.sort()
        return heads

    def begin(self, lane: int) -> None:
        """Count a task that was taken from a lane."""
        for key in self.keys[lane]:
            if key in self.allowed:
                self.allowed[key].begin()

    def let_through(self, leases: list[Lease]) -> list[Lease]:
        """
        Return what stays taken, and count that against the limits.

        What stands in a lane that leaves out a limit which holds for it, one that was made
        after it was submitted, is moved to its own lane, to be woken by its timer.
        """
        misplaced = self.misplaced(leases)
        if misplaced:
            self.move(misplaced)
        # Who has more of what is to be moved must not hold up the others.
        self.plain.passed.update(lease.lane for lease in misplaced)
        through = [lease for lease in leases if lease not in misplaced]
        for lease in through:
            self.begin(lease.lane)
        return through

    def misplaced(self, leases: list[Lease]) -> dict[Lease, set[str]]:
        """Return what leaves out limits that hold for it, with the keys of these."""
        left_out = {
            lease: may_hold(lease.queue, lease.type, lease.user, split(lease.limits)).difference(
                self.keys[lease.lane]
            )
            for lease in leases
        }
        asked = {key for keys in left_out.values() for key in keys}
        held_by = limits(self.db, asked).keys() if asked else set()
        return {lease: keys & held_by for lease, keys in left_out.items() if keys & held_by}

    def move(self, misplaced: dict[Lease, set[str]]) -> None:
        ids = numbers(sorted(lease.task_id for lease in misplaced))
        lanes = []
        for lease, keys in misplaced.items():
            own = sorted(keys.union(self.keys[lease.lane]))
            lanes.append(f"WHEN {lease.task_id} THEN {lane_of(lease.queue, lease.user, own)}")
            self.accounts.end(lease, None)
        statement = MOVE.replace("{lanes}", " ".join(lanes)).replace("{ids}", ids)
        self.db.execute(statement, now=self.request.now)
        self.moved += len(misplaced)
