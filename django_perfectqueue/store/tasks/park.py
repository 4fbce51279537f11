"""
Keep tasks of unknown types out of their lines, until a worker comes that knows them.

A parked ticket is scheduled for a time that never comes, the same for all of one type: so
the index of timers finds the types that are parked, and the tickets of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from django_perfectqueue.models import PARKED_FROM, Ticket

from ..database.transaction import Session, in_transaction, retry_transaction, with_retries
from ..leases import LINE
from ..notify.ring import notify_workers
from ..values import Lease

BATCH = 4_000
MOST_TYPES = 100
SOME = 500
SOME_TYPES = 10
PLACES = 800 * 365 * 86_400 * 1_000_000

RELEASED = """
SELECT "task_id" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) AND "state" = 1 ORDER BY "task_id"
"""
TYPES = 'SELECT "id", "type" FROM "perfectqueue_task" WHERE "id" IN ({ids})'
PARK = """
UPDATE "perfectqueue_ticket" SET "state" = 1, "timer_at" = %(until)s WHERE "task_id" IN ({ids})
"""
PARKED = """
SELECT "task_id" FROM "perfectqueue_ticket"
WHERE "timer_at" = %(until)s ORDER BY "task_id" LIMIT %(limit)s
"""
ADMIT = 'UPDATE "perfectqueue_ticket"{hint} SET "timer_at" = {now} WHERE "task_id" IN ({ids})'

Knows = Callable[[str], bool]


def place_of(type_: str) -> datetime:
    """Return the time for which the tickets of a type are parked."""
    digest = hashlib.blake2b(type_.encode(errors="surrogatepass"), digest_size=8).digest()
    return PARKED_FROM + timedelta(microseconds=1 + int.from_bytes(digest, "big") % PLACES)


def park(released: Sequence[Lease], knows: Knows, *, using: str) -> int:
    """
    Park tasks of unknown types: those that were just released for that, and those that are
    next in the same lines. Return how many.

    A line of nothing else is cleared some thousand at a time, so nobody acquires them one
    by one.
    """
    count = park_some(RELEASED, knows, using=using, ids=[lease.task_id for lease in released])
    for lane in sorted({lease.lane for lease in released}):
        first = {"lane": lane, "count": BATCH}
        count += park_some(LINE, knows, using=using, parameters=first)
    if count:
        # One that knows them may be resting.
        notify_workers(using=using)
    return count


@retry_transaction
def park_some(which: str, knows: Knows, *, using: str, **chosen: Any) -> int:
    """Park those tasks of a query whose types are unknown; return how many."""
    count = 0
    with in_transaction(using) as db:
        rows = db.rows(which + db.dialect.skip_clause, **chosen)
        types: dict[int, str] = (
            dict(db.rows(TYPES, ids=[task_id for (task_id,) in rows])) if rows else {}
        )
        for type_ in sorted(set(types.values())):
            if not knows(type_):
                own = sorted(task_id for task_id, its in types.items() if its == type_)
                values = {"until": db.dialect.parameter(place_of(type_))}
                db.execute(PARK, values, ids=own)
                count += len(own)
    return count


def unpark(knows: Knows, after: datetime = PARKED_FROM, *, using: str) -> datetime:
    """
    Make the parked tasks due whose types are known.

    It looks at no more than some hundred types; return where to go on the next time. Costs
    one index look-up when nothing is parked.
    """
    reached, count = unpark_some(knows, using=using, after=after, types=MOST_TYPES, limit=BATCH)
    if count:
        notify_workers(using=using)
    return reached


def unpark_some(
    knows: Knows,
    *,
    using: str,
    after: datetime = PARKED_FROM,
    types: int = SOME_TYPES,
    limit: int = SOME,
) -> tuple[datetime, int]:
    """
    Make some parked tasks of each known type due, with a ``limit`` of BATCH all; return where to
    go on the next time, and how many there were.

    The caller takes some of them next, and a worker that does not know the type may park the rest
    again. If all were made due at once, each batch would cost as many writes as tasks are parked.
    """
    count = 0
    for _type in range(types):
        if (found := next_type(using=using, after=after)) is None:
            return PARKED_FROM, count
        after, type_ = found
        # Others are scheduled for such a time indeed.
        if after == place_of(type_) and knows(type_):
            while (some := admit(after, using=using, limit=limit)) == BATCH:
                count += some
            count += some
    return after, count


def next_type(*, using: str, after: datetime) -> tuple[datetime, str] | None:
    """Return the next place behind this one where something is parked, and of which type."""
    tickets = Ticket.objects.using(using).filter(timer_at__gt=after).order_by("timer_at")
    row = with_retries(tickets.values_list("timer_at", "task__type").first, using=using)
    return row and (row[0] or after, row[1])


@retry_transaction
def admit(until: datetime, *, using: str, limit: int) -> int:
    """Make a batch of the tickets that are parked at one place due; return how many."""
    with in_transaction(using) as db:
        values = {"until": db.dialect.parameter(until), "limit": limit}
        rows = db.rows(PARKED + db.dialect.skip_clause, values)
        if rows:
            db.execute(ADMIT, ids=[row[0] for row in rows])
    return len(rows)


# Delete tasks, and the rows that go with them.


STORY = ("attempt", "journal", "deadletter", "batchmember")
BY_ID = {"step": "task_id", "tag": "task_id", "watch": "task_id", "dependency": "child_id"}


def forget_story(db: Session, ids: Collection[int]) -> None:
    """Delete what is written beside tasks."""
    for name in STORY:
        db.execute(f'DELETE FROM "perfectqueue_{name}" WHERE "task_id" IN ({{ids}})', ids=ids)
    # Deleted by id: by the task MariaDB would wait for those who write of the next ones.
    for name, column in BY_ID.items():
        table = f"perfectqueue_{name}"
        statement = f'SELECT "id" FROM "{table}" WHERE "{column}" IN ({{ids}})'
        if rows := db.rows(statement + db.dialect.current_clause(db.cursor), ids=ids):
            db.dialect.delete(db.cursor, table, [id_ for (id_,) in rows])


def forget_tasks(db: Session, ids: Collection[int]) -> None:
    """Delete the rows of tasks themselves."""
    db.dialect.delete(db.cursor, "perfectqueue_task", ids)
