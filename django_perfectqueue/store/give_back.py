"""Take back what a dead processor held, at once."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from .accounts import Accounts
from .alarms import admit
from .dialects.base import numbers
from .end import lose
from .transaction import repeated, unit
from .values import Failure

HELD = """
SELECT "task_id", "lane" FROM "perfectqueue_ticket"
WHERE "state" = 2 AND "holder" = %(holder)s AND "alarm_at" <= {horizon}
ORDER BY "task_id"
"""
FREE = """
UPDATE "perfectqueue_ticket" SET "holder" = NULL WHERE "task_id" IN ({ids})
"""


@repeated
def give_back(
    holder: int,
    *,
    using: str,
    alive_time: float,
    crashed: Collection[int] = (),
    keep: Collection[int] = (),
    worker: str = "",
    why: Failure,
    now: datetime | None = None,
) -> int:
    """
    Let others take what a holder has; return how many tasks that is.

    ``crashed`` are the ids of the tasks that were running, for which it counts as a
    crash; ``keep`` are those that it still works on. No lease of the holder may be
    longer than ``alive_time``.
    """
    with unit(using) as (cursor, dialect):
        statement = HELD + dialect.lock_clause()
        found = dialect.execute(
            cursor, statement, {"holder": holder}, now=now, after={"horizon": alive_time + 1}
        ).fetchall()
        lanes = {task_id: lane for task_id, lane in found if task_id not in keep}
        accounts = Accounts()
        lost = sorted(set(lanes) & set(crashed))
        untouched = sorted(set(lanes) - set(crashed))
        for task_id in untouched:
            accounts.of(lanes[task_id]).running -= 1
        if untouched:
            dialect.execute(cursor, FREE.replace("{ids}", numbers(untouched)))
        back = lose(cursor, dialect, accounts, lost, worker=worker, why=why, now=now)
        accounts.lock(cursor, dialect, lanes.values())
        admit(cursor, dialect, sorted(back + untouched))
        accounts.write(cursor, dialect)
    return len(lanes)
