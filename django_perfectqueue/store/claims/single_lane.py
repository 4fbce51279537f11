"""Take from the only lane there is, by few statements."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connections

from ..database.dialects import dialect_of
from ..database.transaction import in_transaction, may_be_a_row
from ..lanes.accounts import Accounts
from ..leases import Claimant, leased
from ..tasks.close import Loss, expire
from ..upkeep.timers import give_back
from ..values import Lease, Watermarks, new_token
from .sql import BY_VENDOR


def take_alone(
    queue: str,
    *,
    limit: int,
    alive_time: float,
    holder: int,
    using: str,
    now: datetime | None = None,
    marks: Watermarks | None = None,
) -> list[Lease]:
    """
    Take up to ``limit`` due tasks where a single lane is open, it has no cap, there are no
    limits and no timer is due; else none.

    For a holder that has nothing to do: it may be what starts a lone task. It commits
    asynchronously and is not repeated, so the caller must know what to do with tasks that
    were taken when the answer was lost, as acquire() does by itself. What loses against another
    transaction takes nothing. ``marks`` are those of earlier claims.
    """
    dialect = dialect_of(using)
    taker = Claimant(holder, new_token(), alive_time, now, marks or Watermarks())
    try:
        leases = claim(queue, limit, taker, using=using)
    except Exception as error:
        if dialect.passes(error):
            return []
        if not may_be_a_row(error, using=using):
            raise
        # It may have been committed all the same; acquire() sets aside what can't be read.
        give_back(holder, using=using, alive_time=alive_time, loss=Loss(), now=now)
        return []
    if late := [lease for lease, is_late in leases if is_late]:
        end_late(late, using=using, now=now)
    return [lease for lease, is_late in leases if not is_late]


def claim(queue: str, limit: int, taker: Claimant, *, using: str) -> list[tuple[Lease, bool]]:
    """Take tickets in one transaction; return each lease with whether its task has expired."""
    statements = BY_VENDOR[connections[using].vendor]
    with in_transaction(using) as db:
        claimed = statements.claim_alone(db, queue, limit, taker)
        whose: dict[str, Any] = {"using": using, "holder": taker.holder, "token": taker.token}
        leases = []
        for row, lane in claimed:
            pick = lane.pick(lane.charge(abs(lane.cost)), 0, len(claimed))
            leases.append((leased(row, pick, moment=statements.aware, **whose), bool(row.late)))
        return leases


def end_late(late: list[Lease], *, using: str, now: datetime | None) -> None:
    with in_transaction(using) as db:
        accounts = Accounts(now)
        for lease in late:
            expire(db, accounts, lease, now=now)
        accounts.write(db)
