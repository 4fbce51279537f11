"""Forget every task of a queue."""

from __future__ import annotations

from collections.abc import Collection

from django_perfectqueue.models import State

from ..database.session import Session
from ..database.transaction import in_transaction, retry_transaction
from ..lanes.accounts import Accounts
from ..records.dependency_events import CHILDREN_ONLY, counts_without, note_counts, note_ended
from ..tasks.forget import forget_story, forget_tasks

BATCH = 1000

SOME = """
SELECT "id" FROM "perfectqueue_task" WHERE "queue" = %(queue)s AND "id" > %(after)s
ORDER BY "id" LIMIT %(limit)s
"""

TICKETS = """
SELECT "task_id", "lane", "state" FROM "perfectqueue_ticket"{hint}
WHERE "task_id" IN ({ids}) ORDER BY "task_id"
"""

PARENTS = """
SELECT DISTINCT "parent_id" FROM "perfectqueue_dependency"
WHERE "parent_id" IN ({ids}) AND "state" < 3
"""


def clear(queue: str, *, using: str) -> int:
    """Delete all tasks of a queue, whatever their status; return how many."""
    total, after = 0, 0
    while True:
        # From the last one on: the index still leads by those that are deleted.
        if deleted := clear_batch(queue, after, using=using):
            total, after = total + len(deleted), deleted[-1]
        elif after:
            after = 0
        else:
            return total


@retry_transaction
def clear_batch(queue: str, after: int, *, using: str) -> list[int]:
    """Delete some of its tasks with a larger id; return their ids in order."""
    with in_transaction(using) as db:
        found = db.rows(SOME, {"queue": queue, "after": after, "limit": BATCH})
        ids = [task_id for (task_id,) in found]
        if ids:
            accounts = Accounts()
            forget_tickets(db, accounts, ids)
            note_counts(db, counts_without(db, ids))
            forget_tasks(db, ids)
            forget_story(db, ids)
            # Those of children that were submitted after the caller had begun to read, too.
            parents = db.rows(PARENTS + db.dialect.current_clause(db.cursor), ids=ids)
            if parents:
                note_ended(db, {id_: CHILDREN_ONLY for (id_,) in parents})
            # A task that was put back in its line before its row was gone has one again.
            forget_tickets(db, accounts, ids)
            accounts.write(db)
        return ids


def forget_tickets(db: Session, accounts: Accounts, ids: Collection[int]) -> None:
    """Delete tickets, and take those that run off their lanes' accounts."""
    statement = TICKETS.replace("{hint}", db.dialect.by_primary_key) + db.dialect.lock_clause()
    tickets = db.rows(statement, ids=ids)
    for _task_id, lane, state in tickets:
        if state == State.RUNNING:
            accounts.lose(lane)
    if tickets:
        locked = [task_id for task_id, _lane, _state in tickets]
        db.dialect.delete(db.cursor, "perfectqueue_ticket", locked, key="task_id")
