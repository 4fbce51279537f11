"""Charge lanes for running tasks that take longer than expected."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ..database.transaction import in_transaction, retry_transaction
from ..lanes.accounts import Accounts
from ..values import Lease
from .fence import hold_all

NOTE = """
UPDATE "perfectqueue_ticket"{hint} SET "charged" = CASE "task_id" {charges} END
WHERE "task_id" IN ({ids})
"""


@retry_transaction
def charge(ran: Mapping[Lease, float], *, using: str, now: datetime | None = None) -> None:
    """
    Charge the lanes of running tasks, each with the seconds that it has run, twice as much;
    and expect that the next tasks of these lanes take as long.

    So it need not be done again before a task has run twice as long. A lease that has passed on
    charges nothing. The tickets keep what was charged: whoever ends a task corrects that, and
    a repetition charges nothing more.
    """
    with in_transaction(using) as db:
        accounts = Accounts(now)
        charges = []
        # Who has locked a ticket ends the task, and charges the rest.
        for lease, said in hold_all(db, list(ran), db.dialect.skip_clause()).items():
            seconds, before = ran[lease], said.charged or lease.charge
            if 2 * seconds > before:
                accounts.overrun(lease, seconds, 2 * seconds - before)
                charges.append((lease.task_id, 2 * seconds))
        if charges:
            cases = " ".join([f"WHEN {task_id} THEN {charge!r}" for task_id, charge in charges])
            note = NOTE.replace("{charges}", cases).replace("{hint}", db.dialect.by_primary_key)
            db.execute(note, ids=sorted(task_id for task_id, _charge in charges))
            accounts.write(db)
