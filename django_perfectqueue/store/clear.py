"""Forget every task of a queue."""

from __future__ import annotations

from .dialects.base import numbers
from .transaction import repeated, unit

BATCH = 1000

SOME = (
    'SELECT "id" FROM "perfectqueue_task" WHERE "queue" = %(queue)s ORDER BY "id" LIMIT %(limit)s'
)
FORGET = (
    'DELETE FROM "perfectqueue_ticket" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_attempt" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_deadletter" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_task" WHERE "id" IN ({ids})',
)
STILL = 'UPDATE "perfectqueue_lane" SET "running" = 0 WHERE "queue" = %(queue)s AND "running" <> 0'


def clear(queue: str, *, using: str) -> int:
    """Delete all tasks of a queue, whatever their status; return how many."""
    total = 0
    while deleted := clear_batch(queue, using=using):
        total += deleted
    return total


@repeated
def clear_batch(queue: str, *, using: str) -> int:
    with unit(using) as (cursor, dialect):
        found = dialect.execute(cursor, SOME, {"queue": queue, "limit": BATCH}).fetchall()
        ids = numbers(task_id for (task_id,) in found)
        for statement in FORGET if found else ():
            dialect.execute(cursor, statement.replace("{ids}", ids))
        if len(found) < BATCH:
            dialect.execute(cursor, STILL, {"queue": queue})
        return len(found)
