"""Take from the only lane there is, by few statements."""

from __future__ import annotations

from typing import Any

from django.db import connections

from ..database.dialects import dialect_of
from ..database.transaction import in_transaction, may_be_a_row
from ..lanes.accounts import Accounts
from ..leases import leased
from ..tasks.close import Loss, expire
from ..upkeep.timers import give_back
from ..values import ClaimRequest, Lease, new_token
from .sql import BY_VENDOR


def take_alone(request: ClaimRequest) -> list[Lease]:
    """
    Take due tasks of the first queue of a request, if one lane is open, which has no cap, and
    there are no limits and no due timers. Otherwise take none.

    A holder that was idle calls it, since it starts a lone task soonest. It commits
    asynchronously and is not repeated, so the caller must know what to do with tasks that
    were taken when the answer was lost, as acquire() does by itself. After a conflict with
    another transaction it takes nothing.
    """
    using, now = request.using, request.now
    try:
        leases, late = claim(request, new_token())
    except Exception as error:
        if dialect_of(using).passes(error):
            return []
        if not may_be_a_row(error, using=using):
            raise
        # It may have been committed; acquire() sets aside what can't be read.
        alive_time = request.alive_time
        give_back(request.holder, using=using, alive_time=alive_time, loss=Loss(), now=now)
        return []
    if late:
        with in_transaction(using, now=now) as db:
            accounts = Accounts()
            for lease in late:
                expire(db, accounts, lease)
            accounts.write(db)
    return leases


def claim(request: ClaimRequest, token: int) -> tuple[list[Lease], list[Lease]]:
    """Take tickets in one transaction; return the leases, and those whose tasks have expired."""
    using, leases, late = request.using, list[Lease](), list[Lease]()
    whose: dict[str, Any] = {"using": using, "holder": request.holder, "token": token}
    statements = BY_VENDOR[connections[using].vendor]
    with in_transaction(using, now=request.now) as db:
        claimed, lane = statements.claim_alone(db, request, token)
        if lane is not None:
            pick = lane.pick(lane.charge(abs(lane.cost)), 0, len(claimed))
            for row in claimed:
                lease = leased(row, pick, moment=statements.aware, **whose)
                (late if row.late else leases).append(lease)
    return leases, late
