"""Renew leases, and learn which are lost or to be given up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..conf import options
from .dialects.base import numbers
from .recover import recover
from .transaction import reading, repeated, timely
from .values import Lease, Pulse

RENEW = """
UPDATE "perfectqueue_ticket" SET "alarm_at" = {until}
WHERE "task_id" IN ({ids}) AND "holder" IN ({holders}) AND "state" = 2
    AND "alarm_at" < {until}
"""
LOOK = """
SELECT "task_id", "attempt", "holder", "cancel_requested" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) AND "state" = 2
"""


def heartbeat(
    leases: Sequence[Lease],
    *,
    using: str,
    alive_time: float | None,
    now: datetime | None = None,
) -> list[Pulse]:
    """
    Renew leases for so many seconds from now; return what became of each.

    With an ``alive_time`` of None only look. Costs one statement to look and one to
    renew, however many they are. A lease that only a crash of the server has undone is
    taken back, for ALIVE_TIME, and counts as held.
    """
    pulses = beat(leases, using=using, alive_time=alive_time, now=now)
    lost = [lease for lease, pulse in zip(leases, pulses, strict=True) if not pulse.held]
    again = options().ALIVE_TIME if alive_time is None else alive_time
    if not lost or not (back := recover(lost, alive_time=again, using=using, now=now)):
        return pulses
    held = Pulse(held=True, cancel_requested=False)
    return [held if lease in back else pulse for lease, pulse in zip(leases, pulses, strict=True)]


@repeated
def beat(
    leases: Sequence[Lease], *, using: str, alive_time: float | None, now: datetime | None
) -> list[Pulse]:
    ids = numbers(sorted(lease.task_id for lease in leases))
    holders = numbers(sorted({lease.holder for lease in leases}))
    with (reading if alive_time is None else timely)(using) as (cursor, dialect):
        if alive_time is not None:
            renew = RENEW.replace("{ids}", ids).replace("{holders}", holders)
            dialect.execute(cursor, renew, now=now, after={"until": alive_time})
        rows = dialect.execute(cursor, LOOK.replace("{ids}", ids)).fetchall()
    found = {(task_id, attempt, holder): bool(flag) for task_id, attempt, holder, flag in rows}
    keys = [(lease.task_id, lease.attempt, lease.holder) for lease in leases]
    return [Pulse(held=key in found, cancel_requested=found.get(key, False)) for key in keys]
