"""Compare the counters of what runs with the tickets, and correct those that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from django_perfectqueue.lib.stored_json import names_in

from ..database.transaction import Session, in_transaction, reading, retry_transaction
from ..lanes.accounts import LOCK
from ..limits.holds import open_holds
from ..limits.meters import locked
from ..notify.ring import notify_workers

BATCH = 5000

# One statement: counter and tickets change in one transaction, so both are of one moment.
ACCOUNTS = """
SELECT "own"."id", "own"."queue", "own"."user", "own"."running", COALESCE("held"."tasks", 0)
FROM (
    SELECT "id", "queue", "user", "running" FROM "perfectqueue_account" WHERE {which}
) AS "own"
LEFT JOIN (
    SELECT COALESCE("lane"."account", "ticket"."lane") AS "account", COUNT(*) AS "tasks"
    FROM "perfectqueue_ticket" AS "ticket"
    LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
    WHERE "ticket"."state" = 2 AND "ticket"."timer_at" IS NOT NULL
    GROUP BY COALESCE("lane"."account", "ticket"."lane")
) AS "held" ON "held"."account" = "own"."id"
"""
METERS = """
SELECT "key", NULL, "running" FROM (
    SELECT "key", "running" FROM "perfectqueue_meter" WHERE {which}
) AS "some"
UNION ALL
SELECT NULL, "lane"."keys", COUNT(*)
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
WHERE "ticket"."state" = 2 AND "ticket"."timer_at" IS NOT NULL
GROUP BY "lane"."keys"
"""
SET = 'UPDATE "{table}" SET "running" = %(running)s WHERE "{key}" = %(whose)s'
NEXT = '"{key}" > %(after)s ORDER BY "{key}" LIMIT %(limit)s'
THESE = '"{key}" IN ({these})'

# By whose it is: what a counter says, what runs, and whose it is in words.
Counts = dict[Any, tuple[int, int, str]]


class Counters(NamedTuple):
    """The counters of one table: how they are read beside what runs, and locked."""

    table: str
    key: str
    read: Callable[..., Counts]
    lock: Callable[[Session, Collection[Any]], object]


def accounts(db: Session, which: str, **values: Any) -> Counts:
    rows = db.rows(ACCOUNTS, which=which, **values)
    return {
        id_: (counted, running, f"queue={queue!r} user={user!r}")
        for id_, queue, user, counted, running in rows
    }


def lock_accounts(db: Session, ids: Collection[int]) -> None:
    # Who takes or ends a task now has yet to count it, and waits for this lock.
    db.execute(LOCK + db.dialect.lock_clause, accounts=ids)


def meters(db: Session, which: str, **values: Any) -> Counts:
    rows = db.rows(METERS, which=which, **values)
    running: Counter[str] = Counter()
    for key, own, tasks in rows:
        if key is None:
            running.update(dict.fromkeys(names_in(own), tasks))
    return {key: (counted, running[key], f"limit={key!r}") for key, _keys, counted in rows if key}


def lock_meters(db: Session, keys: Collection[str]) -> None:
    locked(db, keys)
    # What such a limit holds back is looked at again.
    open_holds(db, keys)


@retry_transaction
def recount(counters: Counters, after: Any, *, using: str) -> tuple[Any, list[str]]:
    """
    Compare the next BATCH counters with the tickets, and correct those that differ; return
    where the next batch begins, or None at the end, and of each that was corrected its name,
    what it was and what it is.

    It reads these rows, and every ticket that runs; on a database without an index
    of these it passes those that are scheduled, too. Only a counter that differs is locked.
    """
    table, key, read, lock = counters
    page = {"after": after, "limit": BATCH}
    with reading(using) as db:
        counts = read(db, NEXT.replace("{key}", key), parameters=page)
    reached = max(counts) if len(counts) == BATCH else None
    if wrong := differing(counts):
        statement = SET.replace("{table}", table).replace("{key}", key)
        with in_transaction(using) as db:
            lock(db, wrong)
            wrong = differing(read(db, THESE.replace("{key}", key), these=sorted(wrong)))
            for whose, (_counted, running, _words) in wrong.items():
                db.execute(statement, {"whose": whose, "running": running})
        notify_workers(using=using)
    return reached, [
        f"{words} counted={counted} running={running}" for counted, running, words in wrong.values()
    ]


def differing(counts: Counts) -> Counts:
    return {whose: one for whose, one in counts.items() if one[0] != one[1]}


recount_accounts = partial(recount, Counters("perfectqueue_account", "id", accounts, lock_accounts))
recount_meters = partial(recount, Counters("perfectqueue_meter", "key", meters, lock_meters))
