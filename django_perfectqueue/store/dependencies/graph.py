"""What waits for what, and which batches are in which: each at any depth by one statement."""

from __future__ import annotations

from collections.abc import Collection

from django_perfectqueue.exceptions import InvalidTaskError

from ..database.transaction import reading, retry_transaction

# MySQL stops with an error at the 1,000th level without the hint, which others read past.
LINKED = """
WITH RECURSIVE "linked" ("id") AS (
    SELECT "{to}" FROM "perfectqueue_dependency" WHERE "{of}" IN ({ids}) AND "state" < 3
    UNION
    SELECT "next"."{to}" FROM "linked" JOIN "perfectqueue_dependency" AS "next"
    ON "next"."{of}" = "linked"."id" AND "next"."state" < 3
)
SELECT /*+ SET_VAR(cte_max_recursion_depth = 4294967295) */ "id" FROM "linked"
"""
DESCENDANTS = LINKED.replace("{of}", "parent_id").replace("{to}", "child_id")
ANCESTORS = LINKED.replace("{of}", "child_id").replace("{to}", "parent_id")
# A batch, by minus its id, waits for its tasks, and for the batches in it.
WAITING = """
WITH RECURSIVE "waiting" ("id") AS (
    SELECT "id" FROM "perfectqueue_task" WHERE "id" = %(start)s
    UNION
    SELECT -"id" FROM "perfectqueue_batch" WHERE "id" = -%(start)s
    UNION
    SELECT COALESCE("child"."child_id", -"member"."batch_id", -"within"."parent_id")
    FROM "waiting"
    CROSS JOIN (SELECT 1 AS "way" UNION ALL SELECT 2 UNION ALL SELECT 3) AS "ways"
    LEFT JOIN "perfectqueue_dependency" AS "child"
    ON "way" = 1 AND "child"."parent_id" = "waiting"."id" AND "child"."state" < 3
    LEFT JOIN "perfectqueue_batchmember" AS "member"
    ON "way" = 2 AND "member"."task_id" = "waiting"."id"
    LEFT JOIN "perfectqueue_batch" AS "within" ON "way" = 3 AND "within"."id" = -"waiting"."id"
    WHERE COALESCE("child"."child_id", "member"."batch_id", "within"."parent_id") IS NOT NULL
)
SELECT /*+ SET_VAR(cte_max_recursion_depth = 4294967295) */ "id"
FROM "waiting" WHERE "id" IN ({ids}) LIMIT 1
"""
WITHIN = """
WITH RECURSIVE "within" ("id") AS (
    SELECT "id" FROM "perfectqueue_batch" WHERE "id" IN ({ids})
    UNION
    SELECT "batch"."id" FROM "within" JOIN "perfectqueue_batch" AS "batch"
    ON "batch"."parent_id" = "within"."id"
)
SELECT /*+ SET_VAR(cte_max_recursion_depth = 4294967295) */ "id" FROM "within"
"""
AROUND = """
WITH RECURSIVE "around" ("id") AS (
    SELECT "batch_id" FROM "perfectqueue_batchmember" WHERE "task_id" IN ({ids})
    UNION
    SELECT "batch"."parent_id" FROM "around" JOIN "perfectqueue_batch" AS "batch"
    ON "batch"."id" = "around"."id" WHERE "batch"."parent_id" IS NOT NULL
)
SELECT /*+ SET_VAR(cte_max_recursion_depth = 4294967295) */ "id" FROM "around"
"""


def descendants(ids: Collection[int], *, using: str) -> list[int]:
    """Return the tasks that wait for one of these, and for these again, the last first."""
    return sorted(walk(DESCENDANTS, ids, using=using).difference(ids), reverse=True)


def ancestors(ids: Collection[int], *, using: str) -> set[int]:
    """Return the tasks for which these wait, and for which these wait again."""
    return walk(ANCESTORS, ids, using=using)


def batches_within(batch: int, *, using: str) -> list[int]:
    """Return a batch and those in it."""
    return sorted(walk(WITHIN, [batch], using=using))


def batches_around(tasks: Collection[int], *, using: str) -> set[int]:
    """Return the batches in which these tasks are, and those in which these are."""
    return walk(AROUND, tasks, using=using)


def refuse_circle(start: int, parents: Collection[int], why: str, *, using: str) -> None:
    """
    Raise InvalidTaskError, which says why, where one of these tasks waits for a task or, by
    minus its id, for a batch.
    """
    if walk(WAITING, parents, using=using, start=start):
        raise InvalidTaskError(why)


@retry_transaction
def walk(statement: str, ids: Collection[int], *, using: str, **values: int) -> set[int]:
    if not ids:
        return set()
    with reading(using) as db:
        rows = db.rows(db.dialect.deep(db.cursor) + statement, values, ids=ids)
    return {id_ for (id_,) in rows}
