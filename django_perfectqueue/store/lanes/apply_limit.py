"""Apply an edited limit to tasks that wait already."""

from __future__ import annotations

from django_perfectqueue.models import Policy

from ..arithmetic.policies import rule_of
from ..database.session import Session
from ..database.transaction import in_transaction, reading, retry_transaction
from ..limits.holds import hold_id, open_again
from ..limits.limit_cache import forget_limits
from ..notify.ring import notify_workers
from .accounts import FILE
from .wake import first_open

BATCH = 500
BATCHES = 200

QUEUES = 'SELECT "queue" FROM "perfectqueue_hold" WHERE "key" = %(key)s'
HELD = """
SELECT "lane"."account" FROM (
    SELECT "account", "turn" FROM "perfectqueue_lane"
    WHERE "held_by" = %(hold)s AND "turn" < %(floor)s
    ORDER BY "turn" LIMIT %(limit)s
) AS "lane"
"""
LOCK = """
SELECT "id" FROM "perfectqueue_account"
WHERE "id" IN ({accounts}) AND "virtual_time" < %(floor)s AND "policy" = 0 ORDER BY "id"
"""
FILE_ALL = FILE + 'WHERE "account" IN ({accounts})'
LIFT = """
UPDATE "perfectqueue_account" SET "virtual_time" = %(floor)s WHERE "id" IN ({accounts})
"""


def apply_limit(key: str, *, using: str) -> None:
    """
    Apply a changed limit to the tasks that wait behind it.

    A user who was held back takes its place as one that wakes: it has saved no credit.
    Limits themselves are read whenever a task behind them is acquired.
    """
    forget_limits(using)
    for queue in queues_held(key, using=using):
        for _batch in range(BATCHES):
            if lift(queue, key, using=using) < BATCH:
                break
    open_again([key], using=using)
    notify_workers(using=using)


@retry_transaction
def queues_held(key: str, *, using: str) -> list[str]:
    """Return the queues in which a limit holds back lanes, or has done so."""
    with reading(using) as db:
        rows = db.execute(QUEUES, {"key": key}).fetchall()
    return [queue for (queue,) in rows]


@retry_transaction
def lift(queue: str, key: str, *, using: str) -> int:
    """
    Lift some accounts that a limit holds back to those of users whom nothing held back; return
    how many. By a policy without memory there is nothing to lift.
    """
    if rule_of(queue).code != Policy.FAIR:
        return 0
    with in_transaction(using) as db:
        first = first_open(db, queue)
        if first is None:
            return 0
        values = {"hold": hold_id(queue, key), "floor": first, "limit": BATCH}
        rows = db.execute(HELD, values).fetchall()
        raise_to(db, sorted({account for (account,) in rows}), first)
        return len(rows)


def raise_to(db: Session, accounts: list[int], floor: float) -> None:
    if not accounts:
        return
    values = {"floor": floor}
    locked = db.rows(LOCK + db.dialect.lock_clause, values, accounts=accounts)
    if locked:
        db.execute(LIFT, values, accounts=[account for (account,) in locked])
    # Lanes that were filed by turns before these would be found again and again.
    db.execute(FILE_ALL, accounts=accounts)
