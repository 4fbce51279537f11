"""Take the tickets of those whose turn it is."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any

from django.db.backends.utils import CursorWrapper as Cursor

from ..arithmetic.fair_order import Pick, counted
from ..database.diagnosis import Ailment
from ..database.dialects import Dialect
from ..database.dialects.base import Row, Taker
from ..lanes.accounts import Accounts
from ..leases.leased import leased
from ..tasks.close import expire
from ..values import Lease, new_token


class UnreadableError(Exception):
    """
    Taking tickets has failed, maybe for what is in a row: one of so many of these lanes.

    It rolls back what it comes from; set_aside() then finds the row.
    """

    def __init__(self, wants: Mapping[int, int]) -> None:
        super().__init__(wants)
        self.wants = wants


def may_be_a_row(error: Exception, dialect: Dialect) -> bool:
    """Return whether an error may come from what is in a row, and not from the database."""
    return dialect.ailment(error) is Ailment.OTHER


@dataclass(slots=True, kw_only=True)
class Claim:
    """
    For whom one transaction takes tickets, under which token, and how many of them it found
    expired.
    """

    cursor: Cursor
    dialect: Dialect
    accounts: Accounts
    using: str
    holder: int
    alive_time: float
    now: datetime | None
    expired: int = 0
    token: int = field(default_factory=new_token)

    def take(
        self,
        picks: list[Pick],
        limit: int,
        *,
        alone: bool = False,
        capped: Collection[int] = (),
    ) -> list[Lease]:
        """
        Take up to so many of what was picked; ``capped`` are the lanes that have a cap or
        keep to limits.

        A lane that has less than was picked is asleep from now on, unless it is alone.
        Raise UnreadableError where one can't be taken for what is in its row.
        """
        wants = counted(picks)
        try:
            return self.take_some(picks, wants, limit, alone=alone, capped=capped)
        except Exception as error:
            if may_be_a_row(error, self.dialect):
                raise UnreadableError(wants) from error
            raise

    def take_some(
        self,
        picks: list[Pick],
        wants: Mapping[int, int],
        limit: int,
        *,
        alone: bool,
        capped: Collection[int],
    ) -> list[Lease]:
        taker = Taker(self.holder, self.token, self.alive_time, self.now)
        rows = self.dialect.claim(self.cursor, wants, limit, taker)
        lines = in_lines(rows)
        if not alone:
            for lane in short(wants, lines, limit):
                self.accounts.found_short(lane)
        leases: list[Lease] = []
        late: list[Lease] = []
        whose: dict[str, Any] = {
            "using": self.using,
            "holder": self.holder,
            "token": self.token,
            "moment": self.dialect.claimed_time,
        }
        for pick in picks:
            line = lines[pick.lane]
            some = min(pick.count, len(line))
            if some:
                self.accounts.begin(pick.lane, pick.cost, some)
            for _ in range(some):
                row = line.popleft()
                lease = leased(row, pick, capped=pick.lane in capped, **whose)
                (late if row[7] else leases).append(lease)
        for lease in late:
            expire(self.cursor, self.dialect, self.accounts, lease, now=self.now)
        self.expired += len(late)
        return leases


def in_lines(rows: list[Row]) -> defaultdict[int, deque[Row]]:
    """Return each lane's rows in the order in which they should run."""
    lines: defaultdict[int, deque[Row]] = defaultdict(deque)
    for row in sorted(rows, key=itemgetter(5, 6, 0)):
        lines[row[2]].append(row)
    return lines


def short(wants: Mapping[int, int], lines: Mapping[int, Sequence[Row]], limit: int) -> list[int]:
    """Return the lanes that have less than was wanted, of those that were asked at all."""
    found = []
    for lane, count in wants.items():
        has = len(lines.get(lane, ()))
        limit -= has
        if limit <= 0:
            break
        if has < count:
            found.append(lane)
    return found
