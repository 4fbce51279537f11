"""Give back what a holder has, such as a processor that died."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from .. import signals
from ..models import LastEnding, Outcome
from .accounts import REACHED, Accounts, expected_cost
from .alarms import admit
from .announce import announce_ids
from .bell import ring
from .dialects import Dialect
from .dialects.base import Row
from .end import CANCELLED, Held, Loss, bury, leave, lose
from .transaction import repeated, unit

HELD = f"""
SELECT "task_id", "token", "lane", "attempt", "errors", "crashes", "cancel_requested", (
        SELECT "cost" FROM "perfectqueue_lane" WHERE "id" = "perfectqueue_ticket"."lane"
    ), {REACHED}
FROM "perfectqueue_ticket"
WHERE "state" = 2 AND "holder" = %(holder)s AND "alarm_at" <= {{horizon}}
ORDER BY "task_id" + 0
"""


@repeated
def give_back(
    holder: int,
    *,
    using: str,
    alive_time: float,
    loss: Loss,
    keep: Collection[tuple[int, int]] = (),
    now: datetime | None = None,
) -> int:
    """
    Take tasks from their holder, so that others may acquire them; return how many.

    For those that ``loss`` calls crashed it counts as a crash; the others lose nothing.
    ``keep`` are the fences of the leases that the holder still works under. No lease of the
    holder may be longer than ``alive_time``.
    """
    with unit(using) as (cursor, dialect):
        statement = HELD + dialect.lock_clause()
        found = dialect.execute(
            cursor, statement, {"holder": holder}, now=now, after={"horizon": alive_time + 1}
        ).fetchall()
        left = [(task_id, *row) for task_id, token, *row in found if (task_id, token) not in keep]
        accounts = Accounts(now)
        lost = [row[0] for row in left if row[0] in loss.crashed]
        back = lose(cursor, dialect, accounts, lost, loss)
        others = [row for row in left if row[0] not in loss.crashed]
        back += let_go(cursor, dialect, accounts, others, loss.seconds)
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
) -> list[int]:
    """Free tasks that have not crashed; return those that are not to be cancelled."""
    back: list[int] = []
    cancelled = []
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
            bury(cursor, dialect, held, Outcome.CANCELLED, CANCELLED, now=accounts.now)
            cancelled.append(task_id)
        else:
            back.append(task_id)
    announce_ids(cursor, dialect, [(signals.task_cancelled, cancelled)])
    leave(cursor, dialect, back, LastEnding.GIVEN_BACK)
    return back
