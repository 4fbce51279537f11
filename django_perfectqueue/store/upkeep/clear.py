"""Forget every task of a queue."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from django_perfectqueue.models import State

from ..database.session import Session
from ..database.transaction import in_transaction, reading, retry_transaction
from ..lanes.accounts import Accounts
from ..records.dependency_events import counts_without, note_counts, note_gone
from ..tasks.forget import forget_story, forget_tasks
from .purge import past_references

BATCH = 1000

SOME = """
SELECT "id" FROM "perfectqueue_task" WHERE "queue" = %(queue)s AND "id" > %(after)s
ORDER BY "id" LIMIT %(limit)s
"""

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
    count = after = 0
    # From the last one on: the index still leads by those that are deleted.
    while ids := next_of(queue, after, using=using):
        gone, names = past_references(partial(clear_tasks, using=using), ids, using=using)
        count, after = count + len(gone), ids[-1]
        kept_for |= names
    return count


@retry_transaction
def next_of(queue: str, after: int, *, using: str) -> list[int]:
    """Return the ids of some of its tasks with a larger id, in order."""
    with reading(using) as db:
        found = db.rows(SOME, {"queue": queue, "after": after, "limit": BATCH})
    return [task_id for (task_id,) in found]


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
