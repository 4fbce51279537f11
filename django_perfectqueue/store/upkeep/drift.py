"""Compare the counters of what runs with the tickets, and correct those that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from django_perfectqueue.lib.stored_json import names_in

from ..database.dialects.base import Row
from ..database.transaction import in_transaction, reading, retry_transaction
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
SET_ACCOUNTS = """
UPDATE "perfectqueue_account" SET "running" = CASE "id" {running} END WHERE "id" IN ({ids})
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
SET_METER = 'UPDATE "perfectqueue_meter" SET "running" = %(running)s WHERE "key" = %(key)s'
NEXT = '"{key}" > %(after)s ORDER BY "{key}" LIMIT %(limit)s'
NEXT_ACCOUNTS = ACCOUNTS.replace("{which}", NEXT.replace("{key}", "id"))
NEXT_METERS = METERS.replace("{which}", NEXT.replace("{key}", "key"))


@retry_transaction
def recount_accounts(after: int, *, using: str) -> tuple[int | None, list[str]]:
    """
    Compare the counters of the next BATCH accounts with the tickets, and correct those that
    differ; return where the next batch begins, or None at the end, and of each that was
    corrected its name, what it was and what it is.

    It reads these rows, and every ticket that runs; on a database without an index
    of these it passes those that are scheduled, too. Only a counter that differs is locked.
    """
    with reading(using) as db:
        rows = db.rows(NEXT_ACCOUNTS, {"after": after, "limit": BATCH})
    reached = max(row[0] for row in rows) if len(rows) == BATCH else None
    wrong = differing(rows)
    return reached, correct_accounts(wrong, using=using) if wrong else []


def differing(rows: Collection[Row]) -> dict[int, Row]:
    """Return the rows of ACCOUNTS whose counter is wrong, by their ids."""
    return {row[0]: row for row in rows if row[3] != row[4]}


def correct_accounts(ids: Collection[int], *, using: str) -> list[str]:
    with in_transaction(using) as db:
        # Who takes or ends a task now has yet to count it, and waits for this lock.
        db.execute(LOCK + db.dialect.lock_clause, accounts=ids)
        wrong = differing(db.rows(ACCOUNTS.replace("{which}", '"id" IN ({ids})'), ids=ids))
        if wrong:
            running = " ".join(f"WHEN {id_} THEN {row[4]}" for id_, row in wrong.items())
            db.execute(SET_ACCOUNTS.replace("{running}", running), ids=wrong)
    for queue in {row[1] for row in wrong.values()}:
        notify_workers(queue, using=using)
    return [
        f"queue={queue!r} user={user!r} counted={counted} running={tasks}"
        for _id, queue, user, counted, tasks in wrong.values()
    ]


@retry_transaction
def recount_meters(after: str, *, using: str) -> tuple[str | None, list[str]]:
    """Do the same with the next BATCH meters of limits."""
    with reading(using) as db:
        counts = counts_of(db.rows(NEXT_METERS, {"after": after, "limit": BATCH}))
    reached = max(counts) if len(counts) == BATCH else None
    wrong = wrong_counts(counts)
    return reached, correct_meters(wrong, using=using) if wrong else []


def counts_of(rows: Collection[Row]) -> dict[str, tuple[int, int]]:
    """Return what each meter counts, and what runs behind its limit."""
    running: Counter[str] = Counter()
    for key, own, tasks in rows:
        if key is None:
            running.update(dict.fromkeys(names_in(own), tasks))
    return {key: (count, running[key]) for key, _keys, count in rows if key is not None}


def wrong_counts(counts: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {key: both for key, both in counts.items() if both[0] != both[1]}


def correct_meters(keys: Collection[str], *, using: str) -> list[str]:
    with in_transaction(using) as db:
        locked(db, keys, None)
        rows = db.rows(METERS.replace("{which}", '"key" IN ({keys})'), keys=sorted(keys))
        wrong = wrong_counts(counts_of(rows))
        for key, (_counted, running) in wrong.items():
            db.execute(SET_METER, {"key": key, "running": running})
        if wrong:
            open_holds(db, wrong, None)
    if wrong:
        notify_workers(using=using)
    return [
        f"limit={key!r} counted={counted} running={running}"
        for key, (counted, running) in wrong.items()
    ]
