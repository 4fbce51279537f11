"""Forget every task of a queue."""

from __future__ import annotations

from django_perfectqueue.models import State

from ..database.dialects.base import numbers
from ..database.session import Session
from ..database.transaction import in_transaction, retry_transaction
from ..lanes.accounts import Accounts
from ..records.dependency_events import CHILDREN_ONLY, leave_batches, note_ended
from ..tasks.forget import forget_story, forget_tasks

BATCH = 1000

SOME = (
    'SELECT "id" FROM "perfectqueue_task" WHERE "queue" = %(queue)s ORDER BY "id" LIMIT %(limit)s'
)

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
    total = 0
    while deleted := clear_batch(queue, using=using):
        total += deleted
    return total


@retry_transaction
def clear_batch(queue: str, *, using: str) -> int:
    with in_transaction(using) as db:
        found = db.execute(SOME, {"queue": queue, "limit": BATCH}).fetchall()
        if found:
            own = [task_id for (task_id,) in found]
            ids = numbers(own)
            accounts = Accounts()
            forget_tickets(db, accounts, ids)
            leave_batches(db, ids)
            forget_tasks(db, own)
            forget_story(db, own)
            # Those of children that were submitted after the caller had begun to read, too.
            statement = PARENTS.replace("{ids}", ids) + db.dialect.current_clause(db.cursor)
            parents = db.execute(statement).fetchall()
            if parents:
                note_ended(db, {id_: CHILDREN_ONLY for (id_,) in parents})
            # A task that was put back in its line before its row was gone has one again.
            forget_tickets(db, accounts, ids)
            accounts.write(db)
        return len(found)


def forget_tickets(db: Session, accounts: Accounts, ids: str) -> None:
    """Delete tickets, and take those that run off their lanes' accounts."""
    found = TICKETS.replace("{ids}", ids).replace("{hint}", db.dialect.by_primary_key)
    statement = found + db.dialect.lock_clause()
    tickets = db.execute(statement).fetchall()
    for _task_id, lane, state in tickets:
        if state == State.RUNNING:
            accounts.lose(lane)
    if tickets:
        locked = [task_id for task_id, _lane, _state in tickets]
        db.dialect.delete(db.cursor, "perfectqueue_ticket", locked, key="task_id")
