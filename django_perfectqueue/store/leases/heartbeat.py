"""Renew leases, read which are lost or to be cancelled, and charge for those that last long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from ..database.dialects.base import numbers
from ..database.transaction import in_transaction, reading, retry_transaction, timely
from ..lanes.accounts import Accounts
from ..values import Lease, Pulse
from .fence import lock_leases

RENEW = """
UPDATE "perfectqueue_ticket"{hint} SET "timer_at" = {until}
WHERE "task_id" IN ({ids}) AND "token" IN ({tokens}) AND "state" = 2
    AND "timer_at" < {until}
"""
LOOK = """
SELECT "task_id", "token", "cancel_requested" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) AND "state" = 2
"""
CHARGE = """
UPDATE "perfectqueue_ticket"{hint} SET "charged" = CASE "task_id" {charges} END
WHERE "task_id" IN ({ids})
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


@retry_transaction
def charge(ran: Mapping[Lease, float], *, using: str, now: datetime | None = None) -> None:
    """
    Charge the lanes of running tasks for the seconds that each has run by now, and expect that
    their next tasks run as long, too.

    A lease that has passed on charges nothing. The tickets keep what was charged: who ends a
    task corrects that, and a repetition charges nothing more.
    """
    with in_transaction(using) as db:
        accounts = Accounts(now)
        # The one who has locked a ticket ends its task, and charges for all of it.
        held = lock_leases(db, list(ran), db.dialect.skip_clause)
        for lease, (_cancel, charged) in held.items():
            accounts.overrun(lease, ran[lease], charged)
        if held:
            cases = " ".join([f"WHEN {lease.task_id} THEN {ran[lease]!r}" for lease in held])
            note = CHARGE.replace("{charges}", cases).replace("{hint}", db.dialect.by_primary_key)
            db.execute(note, ids=sorted(lease.task_id for lease in held))
            accounts.write(db)
