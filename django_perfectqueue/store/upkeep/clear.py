"""Forget every task of a queue."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from django_perfectqueue.models import State, Task

from ..database.session import Session
from ..database.transaction import in_transaction, retry_transaction, with_retries
from ..lanes.accounts import Accounts
from ..records.dependency_events import counts_without, note_counts, note_gone
from ..tasks.forget import forget_story, forget_tasks
from .purge import past_references

BATCH = 1000

TICKETS = """
SELECT "task_id", "lane", "state" FROM "perfectqueue_ticket"{hint}
WHERE "task_id" IN ({ids}) ORDER BY "task_id"
"""


def clear(queue: str, *, using: str) -> tuple[int, set[str]]:
    """
    Delete all tasks of a queue, whatever their status, but for those to which rows of other apps
    refer; return how many, and for what others are kept.
    """
    total, kept_for = 0, set[str]()
    while count := clear_once(queue, kept_for, using=using):
        total += count
    return total, kept_for


def clear_once(queue: str, kept_for: set[str], *, using: str) -> int:
    ids: list[int]
    count = after = 0
    rows = Task.objects.using(using).filter(queue=queue).order_by("pk").values_list("pk", flat=True)
    # From the last one on: the index still leads by those that are deleted.
    while ids := with_retries(partial(list, rows.filter(pk__gt=after)[:BATCH]), using=using):
        gone, names = past_references(partial(clear_tasks, using=using), ids, using=using)
        count, after = count + len(gone), ids[-1]
        kept_for |= names
    return count


@retry_transaction
def clear_tasks(ids: Collection[int], *, using: str) -> list[int]:
    with in_transaction(using) as db:
        accounts = Accounts()
        forget_tickets(db, accounts, ids)
        note_counts(db, counts_without(db, ids))
        forget_tasks(db, ids)
        forget_story(db, ids)
        # Those of children that were submitted after the caller had begun to read, too.
        note_gone(db, ids)
        # A task that was put back in its line before its row was gone has one again.
        forget_tickets(db, accounts, ids)
        accounts.write(db)
    return list(ids)


def forget_tickets(db: Session, accounts: Accounts, ids: Collection[int]) -> None:
    """Delete tickets, and take those that run off their lanes' accounts."""
    statement = TICKETS.replace("{hint}", db.dialect.by_primary_key) + db.dialect.lock_clause
    tickets = db.rows(statement, ids=ids)
    for _task_id, lane, state in tickets:
        if state == State.RUNNING:
            accounts.lose(lane)
    if tickets:
        locked = [task_id for task_id, _lane, _state in tickets]
        db.dialect.delete(db.cursor, "perfectqueue_ticket", locked, key="task_id")
