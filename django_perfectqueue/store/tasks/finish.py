"""Close tasks whose handlers have returned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from django_perfectqueue.models import Outcome

from ..database.dialects.base import FinishReport
from ..database.session import Session
from ..database.transaction import in_transaction, retry_transaction
from ..lanes.accounts import Accounts
from ..leases.fence import ending_of
from ..records.dependency_events import note_ended
from ..values import Completion


@retry_transaction
def finish(
    completions: Sequence[Completion],
    *,
    using: str,
    worker: str = "",
    now: datetime | None = None,
) -> list[Completion]:
    """
    Close tasks in one transaction; return those that were refused.

    Refused is what another attempt holds by now, or someone has ended. What this same
    attempt has finished already is not refused: a commit whose answer was lost may be
    repeated.
    """
    with in_transaction(using) as db:
        accounts = Accounts(now)
        refused = close(db, accounts, completions, worker=worker, now=now)
        accounts.write(db)
    return refused


def close(
    db: Session,
    accounts: Accounts,
    completions: Sequence[Completion],
    *,
    worker: str,
    now: datetime | None,
) -> list[Completion]:
    report = FinishReport(worker, time.monotonic(), now)
    each: dict[tuple[int, int], Completion] = {}
    for done in completions:
        each.setdefault((done.lease.task_id, done.lease.token), done)
    closed = db.dialect.finish(db.cursor, list(each.values()), report)
    if followed := {fence[0]: by for fence, (by, _charged) in closed.items() if by}:
        note_ended(db, followed, finished=True)
    accounts.end_all(
        [(done.lease, done.ended - done.started) for fence, done in each.items() if fence in closed]
    )
    for fence, (_by, charged) in closed.items():
        if charged:
            accounts.correct(each[fence].lease, charged)
    missed = [done for fence, done in each.items() if fence not in closed]
    # Of two leases of one task the other one was refused, though the task is finished now.
    just_now = {task_id for task_id, _token in closed}
    return [
        done
        for done in missed
        if done.lease.task_id in just_now or ending_of(db, done.lease, worker) != Outcome.FINISHED
    ]
