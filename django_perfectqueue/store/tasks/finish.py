"""Close tasks whose handlers have returned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from django_perfectqueue.models import Outcome

from ..arithmetic.fair_order import is_gated
from ..database.dialects import dialect_of
from ..database.dialects.base import Report
from ..database.session import Session
from ..database.transaction import in_transaction, reading, retry_transaction
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
    alone = len(completions) == 1 and dialect_of(using).finishes_one
    alone = alone and not is_gated(completions[0].lease.lane)
    if alone and finish_one(completions[0], using=using, worker=worker, now=now):
        return []
    with in_transaction(using) as db:
        accounts = Accounts(now)
        refused = close(db, accounts, completions, worker=worker, now=now)
        accounts.write(db)
    return refused


def finish_one(done: Completion, *, using: str, worker: str, now: datetime | None) -> bool:
    """Close a task by itself; return whether it was held indeed, and nobody follows it."""
    accounts = Accounts(now)
    accounts.end(done.lease, done.seconds)
    entry = accounts.of(done.lease.lane).entry(done.lease.lane)
    report = Report(worker, time.monotonic(), now)
    with reading(using) as db:
        return db.dialect.finish_one(db.cursor, done, entry, report)


def close(
    db: Session,
    accounts: Accounts,
    completions: Sequence[Completion],
    *,
    worker: str,
    now: datetime | None,
) -> list[Completion]:
    report = Report(worker, time.monotonic(), now)
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
