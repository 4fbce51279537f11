"""What the lanes are charged in one transaction, written once and in one order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django_perfectqueue.lib.stored_json import names_in
from django_perfectqueue.models import Policy

from ..arithmetic.fair_order import FIRST_COST, LEAST_COST, MEMORY, is_gated, learn
from ..database.dialects.base import Entry, numbers
from ..database.session import Session
from ..limits.holds import DueHold, Holds, SeenLane, move, open_holds
from ..limits.meters import Meters
from ..values import Lease

LOCK = 'SELECT "id" FROM "perfectqueue_lane" WHERE "id" IN ({lanes}) ORDER BY "id"'
DOZE = """
UPDATE "perfectqueue_lane" SET "has_waiting" = FALSE, "held_by" = 0, "since" = {now}
WHERE "id" IN ({lanes}) AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND "ticket"."lane" = "perfectqueue_lane"."id"
)
"""
RAISE = """
UPDATE "perfectqueue_lane" SET "{column}" = {least}
WHERE "id" IN ({lanes}) AND "{column}" < {least}
"""
PLACES = """
SELECT "id", "account", "keys" FROM "perfectqueue_lane" WHERE "id" IN ({lanes})
"""


@dataclass(slots=True)
class Account:
    running: int = 0
    seconds: float = 0.0
    measured: float = 0.0
    runs: int = 0
    served: bool = False
    finish_tag: float = 0.0
    least_cost: float = 0.0

    def begin(self, cost: float, tasks: int) -> None:
        """Tasks were taken, and charged so much each in advance."""
        self.running += tasks
        self.seconds += cost * tasks
        self.served = True

    def give_back(self, charge: float) -> None:
        """A task that was charged so much in advance has left its holder untried."""
        self.running -= 1
        self.seconds -= charge

    def end(self, charge: float, seconds: float, tasks: int) -> None:
        """Tasks that were charged so much in advance have run for so long, all together."""
        self.running -= tasks
        self.seconds += seconds - charge
        self.measured += seconds
        self.runs += tasks

    def add(self, other: Account) -> None:
        self.running += other.running
        self.seconds += other.seconds
        self.measured += other.measured
        self.runs += other.runs
        self.served |= other.served
        self.finish_tag = max(self.finish_tag, other.finish_tag)
        self.least_cost = max(self.least_cost, other.least_cost)

    def entry(self, lane: int) -> Entry:
        mean = max(self.measured / self.runs, LEAST_COST) if self.runs else 0.0
        return Entry(
            lane=lane,
            running=self.running,
            seconds=self.seconds,
            mean=mean,
            keep=MEMORY**self.runs,
            served=self.served,
            finish_tag=self.finish_tag,
        )


REACHED = f"""(
    SELECT CASE WHEN "policy" = {Policy.FAIR} THEN "virtual_time"
        - CASE WHEN "running" > 1 THEN ("running" - 1) * ABS("cost") / "weight" ELSE 0.0 END
    END
    FROM "perfectqueue_lane" WHERE "id" = "perfectqueue_ticket"."lane"
)"""
"""About the finish tag of the first of the tasks that a lane has running, for a ticket of it."""


def expected_cost(cost: float | None) -> float:
    """Return what a task is charged in advance by the cost of its lane, which may be gone."""
    return max(FIRST_COST if cost is None else abs(cost), LEAST_COST)


@dataclass(frozen=True, slots=True)
class LaneOwner:
    """Whose account a lane behind a gate has, and to which limits its tasks keep."""

    account: int
    keys: Sequence[str]


@dataclass(slots=True)
class Accounts:
    """
    The charges of one transaction.

    Every lane is locked in the order of its id, once, as the last thing before commit;
    so two transactions that charge the same lanes never wait for each other in a ring.
    What lanes behind gates are charged goes to the account of their user, and is counted
    by the meters of their limits, which are locked before any lane. ``gated`` says
    whether there may be such lanes, ``holds`` which of them were looked at, and ``opened``
    how many holds are due since.
    """

    now: datetime | None = None
    lanes: dict[int, Account] = field(default_factory=dict)
    short: set[int] = field(default_factory=set)
    meters: Meters = field(default_factory=Meters)
    gated: bool = True
    holds: Holds = field(default_factory=Holds)
    opened: int = 0
    _places: dict[int, LaneOwner] = field(default_factory=dict)

    def of(self, lane: int) -> Account:
        account = self.lanes.get(lane)
        if account is None:
            account = self.lanes[lane] = Account()
        return account

    def mean(self) -> float:
        """Return the mean of what was measured in this transaction; 0.0 if nothing was."""
        runs = sum(account.runs for account in self.lanes.values())
        measured = sum(account.measured for account in self.lanes.values())
        return max(measured / runs, LEAST_COST) if runs else 0.0

    def begin(self, lane: int, cost: float, tasks: int) -> None:
        """Tasks were taken, and their lane charged so much for each in advance."""
        self.of(lane).begin(cost, tasks)

    def end(self, lease: Lease, seconds: float | None, charged: float | None = None) -> None:
        """
        A task has left its holder after so many seconds; None gives the charge back.
        ``charged`` is what its lane was charged while it ran, if it was.
        """
        if charged:
            self.correct(lease, charged)
        if seconds is None:
            self.of(lease.lane).give_back(lease.charge)
        else:
            self.end_all([(lease, seconds)])

    def correct(self, lease: Lease, charged: float) -> None:
        """A task that ends was charged so much in all, more than when it was taken."""
        self.of(lease.lane).seconds -= charged - lease.charge

    def overrun(self, lease: Lease, seconds: float, charged: float | None) -> None:
        """
        A task runs that has taken so many seconds. They are charged, less what was charged
        before, and its lane's next tasks are expected to cost no less.
        """
        account = self.of(lease.lane)
        account.seconds += seconds - (charged or lease.charge)
        account.least_cost = max(account.least_cost, seconds)

    def end_all(self, ended: Iterable[tuple[Lease, float]]) -> None:
        """Tasks have left their holder, each after so many seconds."""
        by_lane = defaultdict(list)
        for lease, seconds in ended:
            by_lane[lease.lane].append((lease, seconds))
            if lease.is_new:
                learn(lease.using, lease.queue, lease.holder, seconds)
        for lane, some in by_lane.items():
            account = self.of(lane)
            charge = sum([lease.charge for lease, _seconds in some])
            account.end(charge, sum([seconds for _lease, seconds in some]), len(some))
            tags = [lease.finish_tag for lease, _seconds in some]
            account.finish_tag = max(account.finish_tag, *tags)

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

    def places(self, db: Session) -> dict[int, LaneOwner]:
        """Return whose accounts the lanes behind gates have, of those to be charged."""
        if unknown := [lane for lane in self.lanes if is_gated(lane) and lane not in self._places]:
            statement = PLACES.replace("{lanes}", numbers(unknown))
            statement += db.dialect.current_clause(db.cursor)
            for lane, account, keys in db.execute(statement).fetchall():
                self._places[lane] = LaneOwner(account, names_in(keys))
        return self._places

    def own(self, db: Session) -> dict[int, Account]:
        """Return what each account is charged, by the id of its lane without a gate."""
        if not any(map(is_gated, self.lanes)):
            return self.lanes
        places = self.places(db)
        charged: dict[int, Account] = {}
        for lane, account in self.lanes.items():
            own = places[lane].account if lane in places else lane
            charged.setdefault(own, Account()).add(account)
        return charged

    def keys(self, db: Session) -> set[str]:
        """Return the keys of the limits by which something is to be counted."""
        places = self.places(db)
        return {key for lane in self.lanes if lane in places for key in places[lane].keys}

    def lock(self, db: Session, others: Iterable[int]) -> None:
        """Lock the accounts to be charged together with others that are to be woken before."""
        if self.lanes:
            self.meters.lock(db, self.keys(db), self.now)
            lanes = numbers(sorted(self.own(db).keys() | set(others)))
            db.execute(LOCK.replace("{lanes}", lanes) + db.dialect.lock_clause)

    def look_at(self, due: Sequence[DueHold], rows: Iterable[tuple[int, int, SeenLane]]) -> None:
        """Take in lanes behind limits, each with its account, and the holds that were due."""
        self.holds.due = list(due)
        for lane, account, seen in rows:
            self.holds.seen[lane] = seen
            self._places[lane] = LaneOwner(account, list(seen.keys))

    def write(self, db: Session) -> int:
        """Charge the lanes; return how many were put to sleep or behind another hold."""
        limited = bool(self.holds.seen or self.holds.due or any(map(is_gated, self.lanes)))
        changed = self.count(db) if limited else {}
        if self.lanes:
            own = self.own(db)
            entries = [own[lane].entry(lane) for lane in sorted(own)]
            copied = db.dialect.charge(db.cursor, entries, self.now)
            if least := {lane: one.least_cost for lane, one in own.items() if one.least_cost}:
                raise_column(db, "cost", least)
            if copied or (copied is None and self.gated):
                db.dialect.copy_accounts(db.cursor, copied or own)
        if limited:
            self.tag(db)
        if changed:
            move(db, changed)
        slept = 0
        if self.short:
            doze = DOZE.replace("{lanes}", numbers(sorted(self.short)))
            slept = db.execute(doze, now=self.now).rowcount
        return slept + len(changed)

    def tag(self, db: Session) -> None:
        """Move the clocks of gates, each by the lanes behind it and not by their accounts."""
        tags = {lane: self.lanes[lane].finish_tag for lane in self.lanes if is_gated(lane)}
        raise_column(db, "finish_tag", tags)

    def count(self, db: Session) -> dict[int, int]:
        """
        Count what has begun and ended behind limits; return the lanes that move to another
        hold, or to none.
        """
        for lane, place in self.places(db).items():
            if account := self.lanes.get(lane):
                self.meters.add(place.keys, account.running)
        self.meters.write(db, self.now)
        changed = self.holds.changes(self.meters, self.short)
        self.holds.write(db, self.meters, changed, self.short)
        opened = self.meters.freed() | self.holds.unused(self.meters, self.short, changed)
        if opened:
            self.opened = open_holds(db, opened, self.now)
        for lane in changed:
            # Charged nothing, its account is locked with the others, before the lane is.
            self.of(lane)
        return changed


def raise_column(db: Session, column: str, least: Mapping[int, float]) -> None:
    """Raise a column of lanes to what is given for each, where it is less; 0.0 is nothing."""
    if given := {lane: value for lane, value in sorted(least.items()) if value}:
        cases = " ".join(f"WHEN {lane} THEN {value!r}" for lane, value in given.items())
        statement = RAISE.replace("{column}", column).replace("{lanes}", numbers(given))
        db.execute(statement.replace("{least}", f'CASE "id" {cases} END'))
