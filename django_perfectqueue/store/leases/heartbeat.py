"""Renew leases, and read which are lost or to be cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..database.dialects.base import numbers
from ..database.transaction import reading, retry_transaction, timely
from ..values import Lease, Pulse

RENEW = """
UPDATE "perfectqueue_ticket"{hint} SET "alarm_at" = {until}
WHERE "task_id" IN ({ids}) AND "token" IN ({tokens}) AND "state" = 2
    AND "alarm_at" < {until}
"""
LOOK = """
SELECT "task_id", "token", "cancel_requested" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) AND "state" = 2
"""


@retry_transaction
def heartbeat(
    leases: Sequence[Lease],
    *,
    using: str,
    alive_time: float | None,
    now: datetime | None = None,
) -> list[Pulse]:
    """
    Renew leases for ``alive_time`` seconds from now; return the state of each.

    With an ``alive_time`` of None they are only read. It costs one statement to read and one
    to renew, however many they are.
    """
    ids = numbers(sorted(lease.task_id for lease in leases))
    tokens = numbers(sorted({lease.token for lease in leases}))
    with (reading if alive_time is None else timely)(using) as db:
        if alive_time is not None:
            renew = RENEW.replace("{ids}", ids).replace("{tokens}", tokens)
            renew = renew.replace("{hint}", db.dialect.by_primary_key)
            db.execute(renew, now=now, after={"until": alive_time})
        rows = db.execute(LOOK.replace("{ids}", ids)).fetchall()
    found = {(task_id, token): bool(cancel) for task_id, token, cancel in rows}
    fences = [lease.fence for lease in leases]
    return [Pulse(held=one in found, cancel_requested=found.get(one, False)) for one in fences]
