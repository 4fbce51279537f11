"""Take from the only lane there is, by one statement."""

from __future__ import annotations

from datetime import datetime

from django.db import connections

from ..database.dialects import dialect_of
from ..database.transaction import in_transaction, reading
from ..lanes.accounts import Accounts
from ..leases.leased import Taker, leased
from ..tasks.close import Loss, expire
from ..upkeep.give_back import give_back
from ..values import Lease, new_token
from .sql.postgresql import claim_alone
from .unreadable import may_be_a_row


def take_alone(
    queue: str,
    *,
    limit: int,
    alive_time: float,
    holder: int,
    using: str,
    now: datetime | None = None,
) -> list[Lease]:
    """
    Take up to ``limit`` due tasks where a single lane is open, it has no cap, and no timer
    is due; else none. On other databases than PostgreSQL, which need several statements, none.

    For a holder that has nothing to do: it may be what starts a lone task. It commits
    asynchronously and is not repeated, so the caller must know what to do with tasks that
    were taken when the answer was lost, as acquire() does by itself.
    """
    if connections[using].vendor != "postgresql":
        return []
    token = new_token()
    try:
        with reading(using) as db:
            taker = Taker(holder, token, seconds=alive_time, now=now)
            claimed = claim_alone(db, queue, limit, taker)
    except Exception as error:
        if not may_be_a_row(error, dialect_of(using)):
            raise
        # It has been committed all the same; acquire() sets aside what can't be read.
        give_back(holder, using=using, alive_time=alive_time, loss=Loss(), now=now)
        return []
    leases: list[Lease] = []
    late: list[Lease] = []
    for row, lane in claimed:
        pick = lane.pick(lane.charge(abs(lane.cost)), 0, len(claimed))
        lease = leased(row, pick, using=using, moment=None, holder=holder, token=token)
        (late if row.late else leases).append(lease)
    if late:
        end_late(late, using=using, now=now)
    return leases


def end_late(late: list[Lease], *, using: str, now: datetime | None) -> None:
    with in_transaction(using) as db:
        accounts = Accounts(now)
        for lease in late:
            expire(db, accounts, lease, now=now)
        accounts.write(db)
