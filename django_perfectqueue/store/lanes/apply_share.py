"""Apply an edited share to tasks that wait already."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.models import EVERYONE, Account

from ..arithmetic.fair_order import lane_id
from ..database.session import Session
from ..database.transaction import in_transaction, reading, retry_transaction
from ..notify.ring import notify_workers
from .share_sync import correct, outdated, write
from .shares import shares_of
from .wake import floor, waking, write_accounts

BATCH = 1000
FIRST_LANE = -(2**63)

QUEUES = """
SELECT "queue" FROM "perfectqueue_fairshare" WHERE "user" = %(user)s AND "queue" <> ''
"""
WITH_WORK = """
WITH RECURSIVE "line" AS ({waiting_lanes})
SELECT DISTINCT COALESCE("lane"."account", "line"."lane") FROM "line"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "line"."lane"
WHERE "line"."lane" IS NOT NULL
"""
LANES = """
SELECT "id" FROM "perfectqueue_account" WHERE "id" > %(last)s ORDER BY "id" LIMIT %(limit)s
"""


def apply_shares(user: str, *, using: str) -> None:
    """
    Write a user's shares to its lanes, so that they hold for tasks that wait already.

    Those of everyone are written to the lanes of all who have none of their own, some of
    them at a time, each in a short transaction.
    """
    if user == EVERYONE:
        apply_default(using=using)
        return
    for queue in apply_to_accounts(user, using=using):
        notify_workers(queue, using=using)


@retry_transaction
def apply_to_accounts(user: str, *, using: str) -> set[str]:
    """
    Write a user's shares to the lanes that hold its accounts; return their queues.

    A lane that someone is making just now, from the shares as they were, can be waited
    for only by making it, too. A lane that was paused or held back by its cap takes its
    place as one that wakes: it has saved no credit.
    """
    with in_transaction(using) as db:
        owners = {(queue, user) for queue in queues_of(db, user)}
        places = {queue: floor(db, queue) for queue, _user in owners}
        accounts = [
            waking(lane_id(queue, user), queue, user, share, places[queue])
            for (queue, _user), share in shares_of(db, owners).items()
        ]
        if accounts:
            write_accounts(db, accounts, None)
            # Now that they are locked, so that of two edits the later one stays.
            for (queue, _user), share in shares_of(db, owners).items():
                write(db, [lane_id(queue, user)], share, places[queue].virtual_time)
    return set(places)


def apply_default(*, using: str) -> None:
    """
    Write to every lane the share that holds for it, where that has changed.

    Those with tasks that wait go first: there may be a million others.
    """
    queues: set[str] = set()
    waiting = lanes_with_work(using=using)
    for start in range(0, len(waiting), BATCH):
        queues |= apply_to(waiting[start : start + BATCH], using=using)
    for queue in queues:
        notify_workers(queue, using=using)
    last = FIRST_LANE
    while lanes := some_lanes(last, using=using):
        apply_to(lanes, using=using)
        last = lanes[-1]


@retry_transaction
def lanes_with_work(*, using: str) -> list[int]:
    with reading(using) as db:
        statement = WITH_WORK.replace("{waiting_lanes}", db.dialect.waiting_lanes)
        return [lane for (lane,) in db.execute(statement).fetchall()]


@retry_transaction
def some_lanes(last: int, *, using: str) -> list[int]:
    with reading(using) as db:
        values = {"last": last, "limit": BATCH}
        return [lane for (lane,) in db.execute(LANES, values).fetchall()]


@retry_transaction
def apply_to(lanes: Sequence[int], *, using: str) -> set[str]:
    """Write to these lanes the share that holds for them; return the queues of those changed."""
    with reading(using) as db:
        changed = outdated(db, lanes)
    if not changed:
        return set()
    with in_transaction(using) as db:
        start = partial(floor, db)
        return correct(db, changed, lambda queue: start(queue).virtual_time)


def queues_of(db: Session, user: str) -> set[str]:
    """Return the queues in which a user may have a lane."""
    found = db.execute(QUEUES, {"user": user}).fetchall()
    lanes = Account.objects.using(db.cursor.db.alias)
    return {queue for (queue,) in found}.union(distinct(lanes, "queue", limit=None))
