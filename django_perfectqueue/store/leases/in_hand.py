"""What is in a holder's hands, seen and kept from outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from ..arithmetic.fair_order import Pick
from ..database.transaction import reading, retry_transaction, timely
from ..lanes.accounts import expected_cost
from ..notify.ring import notify_workers
from ..values import Lease
from .leased import TASK, TICKET, leased, named

IN_HAND = f"""
SELECT {TICKET}, "ticket"."run_at", 0, {TASK},
    "ticket"."token", "ticket"."cancel_requested", "own"."cost"
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
LEFT JOIN "perfectqueue_account" AS "own"
    ON "own"."id" = COALESCE("lane"."account", "ticket"."lane")
WHERE "ticket"."task_id" IN ({{ids}}) AND "ticket"."holder" = %(holder)s
    AND "ticket"."state" = 2
ORDER BY "ticket"."task_id"
"""
LAPSE = """
UPDATE "perfectqueue_ticket" SET "timer_at" = {now}
WHERE "state" = 2 AND "holder" IN ({ids}) AND "timer_at" <= {horizon} AND "timer_at" > {now}
"""


@retry_transaction
def in_hand(holder: int, task_ids: Iterable[int], *, using: str) -> list[tuple[Lease, bool]]:
    """
    Return the leases of those tasks that a holder has, and which are to be cancelled.

    What their lanes were charged is known to the holder alone; the leases carry what they
    would be charged now.
    """
    with reading(using) as db:
        rows = db.rows(IN_HAND, {"holder": holder}, ids=task_ids)
    found = []
    for *columns, token, cancel_requested, cost in rows:
        [row] = named([tuple(columns)])
        pick = Pick(row.lane, expected_cost(cost))
        whose = {"holder": holder, "token": token}
        lease = leased(row, pick, using=using, moment=db.dialect.moment, **whose)
        found.append((lease, bool(cancel_requested)))
    return found


@retry_transaction
def lapse(
    holders: Sequence[int], *, using: str, alive_time: float, now: datetime | None = None
) -> int:
    """
    Have the leases of these holders run out now, and notify workers; return how many.

    They may hold no lease longer than ``alive_time``. A holder that lives renews what no
    other has acquired until then.
    """
    if not holders:
        return 0
    with timely(using) as db:
        after = {"horizon": alive_time + 1}
        count = int(db.execute(LAPSE, now=now, after=after, ids=holders).rowcount)
    notify_workers(using=using)
    return count
