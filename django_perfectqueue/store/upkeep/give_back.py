"""Take back what a dead processor held, at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django_perfectqueue import signals
from django_perfectqueue.models import Outcome

from ..database.dialects import Dialect
from ..database.dialects.base import Row, numbers
from ..database.transaction import repeated, unit
from ..lanes.accounts import REACHED, Accounts, expected_cost
from ..notify.ring import ring
from ..notify.signals import announce_ids
from ..tasks.close import CANCELLED, NONE_KNOWN, Held, bury, lose
from ..values import Failure
from .timers import admit

HELD = f"""
SELECT "task_id", "token", "lane", "attempt", "errors", "crashes", "cancel_requested", (
        SELECT "cost" FROM "perfectqueue_lane" WHERE "id" = "perfectqueue_ticket"."lane"
    ), {REACHED}
FROM "perfectqueue_ticket"
WHERE "state" = 2 AND "holder" = %(holder)s AND "alarm_at" <= {{horizon}}
ORDER BY "task_id" + 0
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
    seconds: Mapping[int, float] = NONE_KNOWN,
    keep: Collection[tuple[int, int]] = (),
    worker: str = "",
    why: Failure,
    now: datetime | None = None,
) -> int:
    """
    Let others take what a holder has; return how many tasks that is.

    ``crashed`` are the ids of the tasks that were running, for which it counts as a
    crash; ``keep`` are the fences of the leases that it still works under. ``seconds`` is
    for how long each that was begun has run, which is charged. No lease of the holder may
    be longer than ``alive_time``.
    """
    with unit(using) as (cursor, dialect):
        statement = HELD + dialect.lock_clause()
        found = dialect.execute(
            cursor, statement, {"holder": holder}, now=now, after={"horizon": alive_time + 1}
        ).fetchall()
        left = [(task_id, *row) for task_id, token, *row in found if (task_id, token) not in keep]
        accounts = Accounts(now)
        lost = [row[0] for row in left if row[0] in crashed]
        terms: dict[str, Any] = {"seconds": seconds, "worker": worker, "why": why, "now": now}
        back = lose(cursor, dialect, accounts, lost, **terms)
        others = [row for row in left if row[0] not in crashed]
        back += let_go(cursor, dialect, accounts, others, seconds, now)
        admit(cursor, dialect, sorted(back), accounts)
        accounts.write(cursor, dialect)
    if back:
        ring(using=using)
    return len(left)


def let_go(
    cursor: Any,
    dialect: Dialect,
    accounts: Accounts,
    rows: list[Row],
    seconds: Mapping[int, float],
    now: datetime | None,
) -> list[int]:
    """Free tasks that have not crashed; return those that are not to be cancelled."""
    back, cancelled = [], []
    for task_id, lane, attempt, errors, crashes, cancel_requested, cost, reached in rows:
        took = seconds.get(task_id)
        accounts.lose(
            lane,
            untried=took is None,
            charge=expected_cost(cost),
            seconds=took,
            reached=reached,
        )
        if cancel_requested:
            held = Held(task_id=task_id, attempt=attempt, errors=errors, crashes=crashes)
            bury(cursor, dialect, held, Outcome.CANCELLED, CANCELLED, now=now)
            cancelled.append(task_id)
        else:
            back.append(task_id)
    announce_ids(cursor, dialect, [(signals.task_cancelled, cancelled)])
    if back:
        dialect.execute(cursor, FREE.replace("{ids}", numbers(back)))
    return back
