"""Give back what a holder has, such as a processor that died."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue import signals
from django_perfectqueue.models import LastEnding, Outcome

from ..database.dialects import Dialect
from ..database.transaction import repeated, unit
from ..lanes.accounts import Accounts, expected_cost
from ..notify.ring import ring
from ..notify.signals import announce_ids
from ..tasks.close import CANCELLED, RUN, Held, HeldTicket, Loss, bury, leave, lose_tickets
from .timers import admit

HELD = f"""
SELECT {RUN} FROM "perfectqueue_ticket"
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
        tickets = [HeldTicket(*row) for row in found]
        left = [ticket for ticket in tickets if (ticket.task_id, ticket.token) not in keep]
        accounts = Accounts(now)
        lost = [ticket for ticket in left if ticket.task_id in loss.crashed]
        back = lose_tickets(cursor, dialect, accounts, lost, loss)
        others = [ticket for ticket in left if ticket.task_id not in loss.crashed]
        back += let_go(cursor, dialect, accounts, others, loss.seconds)
        admit(cursor, dialect, sorted(back), accounts)
        accounts.write(cursor, dialect)
    if back:
        ring(using=using)
    return len(left)


def let_go(
    cursor: Cursor,
    dialect: Dialect,
    accounts: Accounts,
    tickets: Sequence[HeldTicket],
    seconds: Mapping[int, float],
) -> list[int]:
    """Free tasks that have not crashed; return those that are not to be cancelled."""
    back: list[int] = []
    cancelled = []
    for ticket in tickets:
        took = seconds.get(ticket.task_id)
        accounts.lose(
            ticket.lane,
            untried=took is None,
            charge=expected_cost(ticket.cost),
            seconds=took,
            reached=ticket.reached,
        )
        if ticket.cancel_requested:
            held = Held.of(ticket, worker="", seconds=None)
            bury(cursor, dialect, held, Outcome.CANCELLED, CANCELLED, now=accounts.now)
            cancelled.append(ticket.task_id)
        else:
            back.append(ticket.task_id)
    announce_ids(cursor, dialect, [(signals.task_cancelled, cancelled)])
    leave(cursor, dialect, back, LastEnding.GIVEN_BACK)
    return back
