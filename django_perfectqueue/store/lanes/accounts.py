"""What accounts are charged in one transaction, written once and in one order."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, cast

from django_perfectqueue.lib.stored_json import names_in
from django_perfectqueue.models import Policy

from ..arithmetic.fair_order import FIRST_COST, LEAST_COST, MEMORY, is_gated, learn
from ..database.dialects.base import Entry, cases
from ..database.transaction import Session
from ..limits.holds import Holds, open_holds
from ..limits.meters import Meters
from ..values import Lease

MOST_KNOWN = 10_000
# Of each queue so many accounts are read by their finish tags: those with the last ones.
LAST = 8

LOCK = 'SELECT "id" FROM "perfectqueue_account" WHERE "id" IN ({accounts}) ORDER BY "id"'
DOZE = """
UPDATE "perfectqueue_lane" SET "has_waiting" = FALSE, "since" = {now}, "held_by" = 0
WHERE "id" IN ({lanes}) AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND "ticket"."lane" = "perfectqueue_lane"."id"
)
"""
ASLEEP = """
SELECT COUNT(*) FROM "perfectqueue_account" WHERE "id" IN ({accounts}) AND "has_waiting" = FALSE
"""
OWN = """(
    SELECT {column} FROM "perfectqueue_account" AS "own"
    WHERE "own"."id" = "perfectqueue_lane"."account"
)"""
# Of an account, ready or not; its column ``turn`` is this where it is ready.
TURN = f"""CASE WHEN "own"."policy" = {Policy.SLOTS}
    THEN ("own"."running" + 1.0) / "own"."weight"
    ELSE "own"."virtual_time" + ABS("own"."cost") / "own"."weight" END"""
FILE = f"""
UPDATE "perfectqueue_lane" SET "turn" = COALESCE({OWN.format(column=TURN)}, "turn"),
    "since" = COALESCE({OWN.format(column='"own"."since"')}, "since")
"""
FILE_AND_MOVE = f"""{FILE}, "held_by" = COALESCE({{holds}}, "held_by"),
    "finish_tag" = CASE WHEN "finish_tag" < {{tags}} THEN {{tags}} ELSE "finish_tag" END
WHERE "id" IN ({{lanes}})
"""
# To what is given for each, where it is less.
RAISE = """
UPDATE "perfectqueue_account" SET "cost" = {least}
WHERE "id" IN ({accounts}) AND "cost" < {least}
"""
# The order has PostgreSQL look in the index, and not read past lanes that sleep; by fewer columns
# MySQL would sort them.
OPEN = """
UPDATE "perfectqueue_account" SET "has_open" = (
    SELECT 1 FROM "perfectqueue_lane" AS "lane"
    WHERE "lane"."account" = "perfectqueue_account"."id" AND "lane"."held_by" = 0
        AND "lane"."has_waiting" = TRUE
    ORDER BY "lane"."account", "lane"."held_by", "lane"."has_waiting", "lane"."since" LIMIT 1
) IS NOT NULL
WHERE "id" IN ({accounts})
"""
OWNERS = 'SELECT "id", "account", "keys" FROM "perfectqueue_lane" WHERE "id" IN ({lanes})'


@dataclass(slots=True)
class Charge:
    running: int = 0
    lost: int = 0
    seconds: float = 0.0
    advance: float = 0.0
    measured: float = 0.0
    runs: int = 0
    served: bool = False
    finish_tag: float = 0.0
    least_cost: float = 0.0

    def add(self, other: Charge) -> None:
        self.running += other.running
        self.lost += other.lost
        self.seconds += other.seconds
        self.advance += other.advance
        self.measured += other.measured
        self.runs += other.runs
        self.served |= other.served
        self.finish_tag = max(self.finish_tag, other.finish_tag)
        self.least_cost = max(self.least_cost, other.least_cost)

    def entry(self, account: int, *, short: bool = False) -> Entry:
        sums = self.running, self.lost, self.seconds, self.advance
        mean = max(self.measured / self.runs, LEAST_COST) if self.runs else 0.0
        return Entry(account, *sums, mean, MEMORY**self.runs, self.served, self.finish_tag, short)


# The account of a ticket.
ACCOUNT = """COALESCE((
    SELECT "account" FROM "perfectqueue_lane" WHERE "id" = "perfectqueue_ticket"."lane"
), "perfectqueue_ticket"."lane")"""

# About the finish tag of the first of the tasks that a user has running, for a ticket of it.
REACHED = f"""(
    SELECT CASE WHEN "policy" = {Policy.FAIR} THEN "virtual_time"
        - CASE WHEN "running" > 1 THEN (1.0 - 1.0 / "running") * "advance" / "weight" ELSE 0.0 END
    END
    FROM "perfectqueue_account" WHERE "id" = {ACCOUNT}
)"""


def expected_cost(cost: float | None) -> float:
    """Return what a task is charged in advance by the cost of its lane, which may be gone."""
    return max(FIRST_COST if cost is None else abs(cost), LEAST_COST)


class LaneOwner(NamedTuple):
    """Whose account is charged for the tasks of a lane, and to which limits these keep."""

    account: int
    keys: tuple[str, ...]


# Of lanes behind limits. It never changes, since the lane's id is the hash of it.
known: dict[int, LaneOwner] = {}


def note_owner(lane: int, account: int, keys: str) -> LaneOwner:
    if len(known) >= MOST_KNOWN:
        known.clear()
    owner = known[lane] = LaneOwner(account, names_in(keys))
    return owner


@dataclass(slots=True)
class Accounts:
    """
    The charges of one transaction, by lanes; ``limited`` are those behind limits.

    Every account is locked in the order of its id, once, as the last thing before commit;
    so two transactions that charge the same ones never wait for each other in a ring. Who
    has locked its account may write a lane behind limits. Meters of limits are locked before
    any account. ``holds`` has the lanes that were looked at, ``look_up`` the accounts of which
    it is to be looked up whether a lane is open, and ``opened`` says how many holds are due
    since. ``yielded`` has the lanes of tasks that have yielded.
    """

    lanes: dict[int, Charge] = field(default_factory=dict)
    limited: dict[int, LaneOwner | None] = field(default_factory=dict)
    short: set[int] = field(default_factory=set)
    meters: Meters = field(default_factory=Meters)
    holds: Holds = field(default_factory=Holds)
    look_up: set[int] = field(default_factory=set)
    opened: int = 0
    yielded: set[int] = field(default_factory=set)

    def of(self, lane: int) -> Charge:
        charge = self.lanes.get(lane)
        if charge is None:
            charge = self.lanes[lane] = Charge()
            if is_gated(lane):
                self.limited[lane] = known.get(lane)
        return charge

    def mean(self) -> float:
        """Return the mean of what was measured in this transaction; 0.0 if nothing was."""
        runs = sum(account.runs for account in self.lanes.values())
        measured = sum(account.measured for account in self.lanes.values())
        return max(measured / runs, LEAST_COST) if runs else 0.0

    def begin(self, lane: int, cost: float, tasks: int) -> None:
        """Tasks were taken, and their lane charged so much for each in advance."""
        account = self.of(lane)
        account.running += tasks
        account.seconds += cost * tasks
        account.advance += cost * tasks
        account.served = True

    def end(self, lease: Lease, seconds: float | None, charged: float | None = None) -> None:
        """
        A task has left its holder after so many seconds; None gives the charge back.
        ``charged`` is what its lane was charged while it ran, if it was.
        """
        if charged:
            self.correct(lease, charged)
        if seconds is not None:
            self.end_all([(lease, seconds)])
            return
        account = self.of(lease.lane)
        account.running -= 1
        account.seconds -= lease.charge
        account.advance -= lease.charge

    def correct(self, lease: Lease, charged: float) -> None:
        """A task that ends was charged so much in all, more than when it was taken."""
        self.of(lease.lane).seconds -= charged - lease.charge

    def overrun(self, lease: Lease, seconds: float, charged: float | None) -> None:
        """
        A task runs that has taken so many seconds. They are charged, less what was charged
        before, and its user's next tasks are expected to cost no less.
        """
        charge = self.of(lease.lane)
        charge.seconds += seconds - (charged or lease.charge)
        charge.least_cost = max(charge.least_cost, seconds)

    def end_all(self, ended: Iterable[tuple[Lease, float]]) -> None:
        """
        Tasks have left their holder, each after so many seconds. Of a queue's accounts only those
        with the last finish tags are given theirs: nobody reads the others, and to write one
        changes an index.
        """
        by_lane = defaultdict(list)
        plain: defaultdict[str, list[tuple[float, Charge]]] = defaultdict(list)
        for lease, seconds in ended:
            by_lane[lease.lane].append((lease, seconds))
            if lease.is_new:
                learn(lease.using, lease.queue, lease.holder, seconds)
        for lane, some in by_lane.items():
            account = self.of(lane)
            charge = sum([lease.charge for lease, _seconds in some])
            ran = sum([seconds for _lease, seconds in some])
            account.running -= len(some)
            account.seconds += ran - charge
            account.advance -= charge
            account.measured += ran
            account.runs += len(some)
            # The clock moves to what was reached, not to what was expected: who comes next would
            # be behind those who were given less.
            back = max(0.0, charge - ran) / some[0][0].weight
            tag = max([lease.finish_tag for lease, _seconds in some]) - back
            if is_gated(lane):
                account.finish_tag = max(account.finish_tag, tag)
            else:
                plain[some[0][0].queue].append((tag, account))
        for tags in plain.values():
            for tag, account in heapq.nlargest(LAST, tags, key=itemgetter(0)):
                account.finish_tag = max(account.finish_tag, tag)

    def lose(
        self,
        lane: int,
        *,
        untried: bool = False,
        charge: float = 0.0,
        seconds: float | None = None,
        reached: float | None = None,
    ) -> None:
        """
        A task has left a holder that has not reported. Where others know for how many seconds
        it ran, these are charged in place of about what was charged in advance. ``reached``
        is what REACHED reads: service that was given moves the clock, however it ended.
        """
        account = self.of(lane)
        account.running -= 1
        account.lost += 1
        if not untried:
            account.finish_tag = max(account.finish_tag, reached or 0.0)
        if seconds is not None:
            account.seconds += seconds - charge
            account.measured += seconds
            account.runs += 1

    def found_short(self, lane: int) -> None:
        """A lane had fewer waiting tickets than were wanted: it may be empty."""
        self.of(lane)
        self.short.add(lane)

    def owners(self, db: Session) -> dict[int, LaneOwner]:
        """Return whose the lanes behind limits are, of those to be charged."""
        if None in self.limited.values():
            unknown = [lane for lane, owner in self.limited.items() if owner is None]
            statement = OWNERS + db.dialect.current_clause(db.cursor)
            found = {row[0]: note_owner(*row) for row in db.rows(statement, lanes=unknown)}
            # One that is gone has nobody to be charged.
            self.limited |= {lane: found.get(lane, LaneOwner(lane, ())) for lane in unknown}
        return cast("dict[int, LaneOwner]", self.limited)

    def own(self, db: Session) -> dict[int, Charge]:
        """Return what each account is charged."""
        if not self.limited:
            return self.lanes
        owners = self.owners(db)
        charged: dict[int, Charge] = {}
        for lane, charge in self.lanes.items():
            account = owners[lane].account if lane in owners else lane
            charged.setdefault(account, Charge()).add(charge)
        return charged

    def keys(self, db: Session) -> set[str]:
        """Return the keys of the limits by which something is to be counted."""
        return {key for owner in self.owners(db).values() for key in owner.keys}

    def lock(self, db: Session, others: Iterable[int]) -> None:
        """Lock the accounts to be charged together with others that are to be woken before."""
        if self.lanes:
            self.meters.lock(db, self.keys(db))
            accounts = sorted(self.own(db).keys() | set(others))
            db.execute(LOCK + db.dialect.lock_clause, accounts=accounts)

    def write(self, db: Session, *, counted: bool = False) -> int:
        """
        Charge the accounts, and put their plain lanes to sleep that are empty; return how many
        lanes sleep now or moved between holds where that is ``counted``.
        """
        limited = bool(self.limited or self.look_up or self.holds)
        # What is not counted needs no answer.
        rest = db if counted else db.unanswered
        changed = self.count(db, rest) if limited else {}
        plain, slept = self.short - self.limited.keys(), 0
        if self.lanes:
            own = self.own(db)
            entries = [own[id_].entry(id_, short=id_ in plain) for id_ in sorted(own)]
            known = db.dialect.charge(db.cursor, entries, db.now)
            if least := {id_: one.least_cost for id_, one in own.items() if one.least_cost}:
                rest.execute(RAISE.replace("{least}", case_of(least)), accounts=sorted(least))
            if known is not None:
                slept = known
            elif plain and counted:
                [(slept,)] = db.rows(ASLEEP, accounts=sorted(plain))
        return slept + (self.file(rest, changed) if limited else 0)

    def count(self, db: Session, rest: Session) -> dict[int, int]:
        """
        Count what has begun and ended behind limits; return the lanes that move to another
        hold, or to none.
        """
        for lane, owner in self.owners(db).items():
            for key in owner.keys:
                self.meters.running[key] += self.lanes[lane].running
            if lane in self.yielded:
                self.meters.starts_back.update(owner.keys)
        self.meters.write(db)
        changed = self.holds.changes(self.meters, self.short)
        self.holds.write(db, self.meters, changed, self.short)
        opened = self.meters.freed() | self.holds.unused(self.meters, self.short, changed)
        if opened:
            self.opened = open_holds(rest, opened)
        self.holds.late |= {
            lane for lane, seen in self.holds.seen.items() if seen.held_by and lane in self.limited
        }
        for lane in (*changed, *self.holds.late, *self.look_up):
            # Charged nothing, its account is locked with the others, before the lane is.
            self.of(lane)
        return changed

    def file(self, db: Session, changed: Mapping[int, int]) -> int:
        """
        File lanes behind limits under their holds by the turns of their accounts, move the
        clocks of their gates, and put those to sleep that are empty.
        """
        owners = self.owners(db)
        ended = {lane for lane in owners if self.lanes[lane].finish_tag}
        if lanes := sorted(ended | changed.keys() | self.holds.late):
            tags = case_of({lane: self.lanes[lane].finish_tag for lane in lanes})
            statement = FILE_AND_MOVE.replace("{tags}", tags).replace("{holds}", case_of(changed))
            db.execute(statement, lanes=lanes)
        short = sorted(self.limited.keys() & self.short)
        slept = db.execute(DOZE, lanes=short).rowcount if short else 0
        # A damaged row may have the id of a lane without limits: nobody owns that.
        moved = {owners[lane].account for lane in (*changed, *short) if lane in owners}
        moved |= self.look_up
        if moved:
            db.execute(OPEN, accounts=sorted(moved))
        return slept + len(changed) + len(self.holds.late) + len(self.look_up)


def case_of(values: Mapping[int, float]) -> str:
    """Return the SQL of one value for each row, by its id; of other rows it is null."""
    return f'CASE "id" {cases(sorted(values.items()))} END' if values else "NULL"
