"""Give back what a holder has, such as a processor that died."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from django_perfectqueue import signals
from django_perfectqueue.models import LastEnding, Outcome

from ..database.session import Session
from ..database.transaction import in_transaction, retry_transaction
from ..lanes.accounts import Accounts, expected_cost
from ..notify.ring import notify_workers
from ..notify.signals import announce_ids
from ..tasks.close import (
    CANCELLED,
    TICKET,
    EndedAttempt,
    LockedTicket,
    Loss,
    add_dead_letters,
    leave,
    lose,
)
from .timers import admit

HELD = f"""
{TICKET} WHERE "state" = 2 AND "holder" = %(holder)s AND "timer_at" <= {{horizon}}
ORDER BY "task_id" + 0
"""


@retry_transaction
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
    with in_transaction(using) as db:
        statement = HELD + db.dialect.lock_clause
        found = db.rows(statement, {"holder": holder}, now=now, after={"horizon": alive_time + 1})
        tickets = [LockedTicket(*row) for row in found]
        left = [ticket for ticket in tickets if (ticket.task_id, ticket.token) not in keep]
        accounts = Accounts(now)
        lost = [ticket for ticket in left if ticket.task_id in loss.crashed]
        back = lose(db, accounts, lost, loss)
        others = [ticket for ticket in left if ticket.task_id not in loss.crashed]
        back += let_go(db, accounts, others, loss.seconds)
        admit(db, sorted(back), accounts)
        accounts.write(db)
    if back:
        notify_workers(using=using)
    return len(left)


def let_go(
    db: Session, accounts: Accounts, tickets: Sequence[LockedTicket], seconds: Mapping[int, float]
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
            held = EndedAttempt.of(ticket)
            add_dead_letters(db, [held], Outcome.CANCELLED, CANCELLED, now=accounts.now)
            cancelled.append(ticket.task_id)
        else:
            back.append(ticket.task_id)
    announce_ids(db, [(signals.task_cancelled, cancelled)])
    leave(db, back, LastEnding.GIVEN_BACK)
    return back
