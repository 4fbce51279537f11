"""What the lanes are charged in one transaction, written once and in one order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .dialects import Dialect
from .dialects.base import Entry, numbers
from .lanes import LEAST_COST, MEMORY
from .values import Lease

LOCK = 'SELECT "id" FROM "perfectqueue_lane" WHERE "id" IN ({lanes}) ORDER BY "id"'
DOZE = """
UPDATE "perfectqueue_lane" SET "awake" = FALSE
WHERE "id" IN ({lanes}) AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND "ticket"."lane" = "perfectqueue_lane"."id"
)
"""


@dataclass(slots=True)
class Account:
    running: int = 0
    seconds: float = 0.0
    measured: float = 0.0
    runs: int = 0

    def end(self, charge: float, seconds: float | None) -> None:
        """A task that was charged so much in advance has left its holder."""
        self.running -= 1
        self.seconds += (seconds or 0.0) - charge
        if seconds is not None:
            self.measured += seconds
            self.runs += 1

    def entry(self, lane: int) -> Entry:
        mean = max(self.measured / self.runs, LEAST_COST) if self.runs else 0.0
        return Entry(
            lane=lane,
            running=self.running,
            seconds=self.seconds,
            mean=mean,
            keep=MEMORY**self.runs,
        )


@dataclass(slots=True)
class Accounts:
    """
    The charges of one transaction.

    Every lane is locked in the order of its id, once, as the last thing before commit;
    so two transactions that charge the same lanes never wait for each other in a ring.
    """

    lanes: dict[int, Account] = field(default_factory=dict)
    short: set[int] = field(default_factory=set)

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
        account = self.of(lane)
        account.running += tasks
        account.seconds += cost * tasks

    def end(self, lease: Lease, seconds: float | None) -> None:
        """A task has left its holder after so many seconds; None gives the charge back."""
        self.of(lease.lane).end(lease.charge, seconds)

    def found_short(self, lane: int) -> None:
        """A lane had fewer waiting tickets than were wanted: it may be empty."""
        self.of(lane)
        self.short.add(lane)

    def lock(self, cursor: Any, dialect: Dialect, others: Iterable[int]) -> None:
        """Lock the lanes to be charged together with others that are to be woken before."""
        if self.lanes:
            lanes = numbers(sorted(self.lanes.keys() | set(others)))
            dialect.execute(cursor, LOCK.replace("{lanes}", lanes) + dialect.lock_clause())

    def write(self, cursor: Any, dialect: Dialect) -> int:
        """Charge the lanes; return how many were put to sleep."""
        if self.lanes:
            dialect.charge(cursor, [self.lanes[lane].entry(lane) for lane in sorted(self.lanes)])
        if self.short:
            doze = DOZE.replace("{lanes}", numbers(sorted(self.short)))
            return int(dialect.execute(cursor, doze).rowcount)
        return 0
