"""Take the tickets of those whose turn it is."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..arithmetic.fair_order import Pick, counted
from ..database.session import Session
from ..lanes.accounts import Accounts
from ..leases.leased import Claimant, ClaimedRow, in_line, leased
from ..tasks.close import expire
from ..values import ClaimRequest, Lease, new_token
from .sql import BY_VENDOR
from .unreadable import noting_unreadable


@dataclass(slots=True)
class Tickets:
    """Takes tickets for one holder, all under one token; ``expired`` counts those it closed."""

    db: Session
    accounts: Accounts
    request: ClaimRequest
    expired: int = 0
    token: int = field(default_factory=new_token)

    def take(self, picks: Sequence[Pick], limit: int, *, alone: bool) -> list[Lease]:
        """
        Take up to so many of what was chosen; a lane that has less is put to sleep, unless it
        is ``alone``.

        Raise UnreadableError where one can't be taken for what is in its row.
        """
        wants = counted(picks)
        with noting_unreadable(wants, using=self.request.using):
            lines = by_lane(self.claim(wants, limit))
            if not alone:
                for lane in short(wants, lines, limit):
                    self.accounts.found_short(lane)
            return self.in_order(picks, lines)

    def claim(self, wants: Mapping[int, int], limit: int) -> list[ClaimedRow]:
        """Take up to so many tickets of each lane, until it is ``limit``."""
        request = self.request
        taker = Claimant(request.holder, self.token, request.alive_time, request.now)
        claim = BY_VENDOR[self.db.cursor.db.vendor].claim
        return claim(self.db, wants, limit, taker)

    def in_order(
        self, picks: Iterable[Pick], lines: Mapping[int, deque[ClaimedRow]]
    ) -> list[Lease]:
        """Charge the lanes; return the leases in the order of the picks. Close what is too late."""
        aware = BY_VENDOR[self.db.cursor.db.vendor].aware
        using, holder = self.request.using, self.request.holder
        whose: dict[str, Any] = {"using": using, "holder": holder, "token": self.token}
        leases: list[Lease] = []
        late: list[Lease] = []
        for pick in picks:
            line = lines[pick.lane]
            some = min(pick.count, len(line))
            if some:
                self.accounts.begin(pick.lane, pick.cost, some)
            for _ in range(some):
                row = line.popleft()
                lease = leased(row, pick, capped=pick.capped, moment=aware, **whose)
                (late if row.late else leases).append(lease)
        for lease in late:
            expire(self.db, self.accounts, lease, now=self.request.now)
        self.expired += len(late)
        return leases


def by_lane(rows: Iterable[ClaimedRow]) -> defaultdict[int, deque[ClaimedRow]]:
    """Return each lane's rows in the order in which they should run."""
    lines: defaultdict[int, deque[ClaimedRow]] = defaultdict(deque)
    for row in sorted(rows, key=in_line):
        lines[row.lane].append(row)
    return lines


def short(wants: Mapping[int, int], lines: Mapping[int, Sequence[object]], limit: int) -> list[int]:
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
