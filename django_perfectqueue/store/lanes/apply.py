"""Apply an edited share or limit to tasks that wait already."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.models import EVERYONE, FAMILY, Account, Hold, Meter, Policy

from ..arithmetic.fair_order import lane_id, rule_of
from ..database.transaction import Session, in_transaction, pages, retry_transaction, with_retries
from ..limits.holds import open_again
from ..limits.meters import forget_limits
from ..notify.ring import notify_workers
from .accounts import FILE
from .shares import correct_shares
from .wake import first_open, floor

BATCH = 1000


def apply_shares(user: str, *, using: str) -> None:
    """
    Write a user's shares to its accounts, so that they hold for tasks that wait already.

    Those of everyone are written to the accounts of all who have none of their own, some of
    them at a time, each in a short transaction. Who makes an account just now, from the shares as
    they were, looks again once it is committed.
    """
    rows = Account.objects.using(using)
    if user != EVERYONE:
        queues = with_retries(lambda: distinct(rows, "queue", limit=None), using=using)
        rows = rows.filter(pk__in=[lane_id(queue, user) for queue in queues])
    for accounts in pages(rows, "pk", BATCH, using=using):
        for queue in correct_shares(accounts, using=using, place=place_of):
            notify_workers(queue, using=using)


def place_of(db: Session, queue: str) -> float:
    """Return where an account goes on that was paused or held back by its cap: it has saved
    no credit."""
    return floor(db, queue).virtual_time


# Apply an edited limit to tasks that wait already.


HELD_LANES_AT_ONCE = PART = 500
BATCHES = 200
LAST_CHARACTER = "\U0010ffff"

HELD = """
SELECT "lane"."account" FROM (
    SELECT "account", "turn" FROM "perfectqueue_lane"
    WHERE "held_by" IN ({holds}) AND "turn" < %(floor)s
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
    Apply a changed limit, or family, to the tasks that wait behind it.

    A user who was held back takes its place as one that wakes: it has saved no credit.
    Limits themselves are read whenever a task behind them is acquired.
    """
    forget_limits(using)
    for keys in keys_under(key, using=using):
        # In which they hold back lanes, or have done so.
        holds: defaultdict[str, list[int]] = defaultdict(list)
        rows = Hold.objects.using(using).filter(key__in=keys).values_list("queue", "pk")
        found: list[tuple[str, int]] = with_retries(partial(list, rows), using=using)
        for queue, hold in found:
            holds[queue].append(hold)
        for queue, some in holds.items():
            for _batch in range(BATCHES):
                if lift(queue, some, using=using) < HELD_LANES_AT_ONCE:
                    break
        open_again(keys, using=using)
    notify_workers(using=using)


def keys_under(key: str, *, using: str) -> Iterator[list[str]]:
    """Yield the key of a limit, or of a family those that hold back or are counted, in parts."""
    if not key.endswith(FAMILY):
        yield [key]
        return
    holds = Hold.objects.using(using).filter(key__range=span_of(key))
    yield from pages(holds.distinct(), "key", PART, using=using)
    # Who holds one back just now has its meter locked.
    meters = Meter.objects.using(using).filter(key__range=span_of(key))
    yield from pages(meters, "key", PART, using=using)


def span_of(family: str) -> tuple[str, str]:
    """Return the first and the last key that a family may cover."""
    return family[:-1], family[:-1] + LAST_CHARACTER


@retry_transaction
def lift(queue: str, holds: Sequence[int], *, using: str) -> int:
    """
    Lift some accounts that limits hold back to those of users whom nothing held back; return
    how many. By a policy without memory there is nothing to lift.
    """
    if rule_of(queue).code != Policy.FAIR:
        return 0
    with in_transaction(using) as db:
        first = first_open(db, queue)
        if first is None:
            return 0
        values = {"floor": first, "limit": HELD_LANES_AT_ONCE}
        rows = db.rows(HELD, values, holds=holds)
        if accounts := sorted({account for (account,) in rows}):
            if locked := db.rows(LOCK + db.dialect.lock_clause, values, accounts=accounts):
                db.execute(LIFT, values, accounts=[account for (account,) in locked])
            # Lanes that were filed by turns before these would be found again and again.
            db.execute(FILE_ALL, accounts=accounts)
        return len(rows)
