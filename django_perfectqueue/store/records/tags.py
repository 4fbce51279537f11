"""Tags: names by which tasks are found together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from django_perfectqueue.exceptions import InvalidTaskError, NotFoundError
from django_perfectqueue.payload.inputs import MOST_TAGS

from ..database.session import Session
from ..database.transaction import in_transaction, retry_transaction
from ..values import Submission

ROWS = 300

TAG = 'INSERT INTO "perfectqueue_tag" ("task_id", "tag") VALUES {rows}'
LOCK = 'SELECT "id" FROM "perfectqueue_task" WHERE "id" = %(task_id)s'
TAGS = 'SELECT "tag", "id" FROM "perfectqueue_tag" WHERE "task_id" = %(task_id)s'


def tag_fresh(
    submissions: Sequence[Submission], fresh: Mapping[tuple[str, str], int], *, using: str
) -> None:
    """Store the tags of tasks that were stored just now."""
    pairs = [
        (fresh[task.queue, task.key], tag)
        for task in submissions
        if task.tags and (task.queue, task.key) in fresh
        for tag in task.tags
    ]
    if pairs:
        with in_transaction(using) as db:
            insert(db, pairs)


@retry_transaction
def tag_task(task_id: int, tags: Collection[str], *, using: str) -> None:
    """
    Give a task more tags; those that it has stay as they are.

    Raise NotFoundError where it is gone, InvalidTaskError where it would have too many.
    """
    with in_transaction(using) as db:
        known = locked(db, task_id)
        new = [tag for tag in tags if tag not in known]
        if len(known) + len(new) > MOST_TAGS:
            raise InvalidTaskError(f"A task may have at most {MOST_TAGS} tags.")
        insert(db, [(task_id, tag) for tag in new])


@retry_transaction
def untag_task(task_id: int, tags: Collection[str], *, using: str) -> None:
    """Take tags off a task; raise NotFoundError where it is gone."""
    with in_transaction(using) as db:
        known = locked(db, task_id)
        db.dialect.delete(
            db.cursor, "perfectqueue_tag", [known[tag] for tag in tags if tag in known]
        )


def locked(db: Session, task_id: int) -> dict[str, int]:
    """Return the rows of a task's tags; nobody changes these, or purges it, until the commit."""
    values = {"task_id": task_id}
    if not db.execute(LOCK + db.dialect.lock_clause, values).fetchone():
        raise NotFoundError(f"There is no task with the id {task_id}.")
    return dict(db.rows(TAGS + db.dialect.current_clause(db.cursor), values))


def insert(db: Session, pairs: Iterable[tuple[int, str]]) -> None:
    rest = iter(pairs)
    while some := list(islice(rest, ROWS)):
        rows = ", ".join(f"({int(some[n][0])}, %(tag{n})s)" for n in range(len(some)))
        values = {f"tag{n}": tag for n, (_task_id, tag) in enumerate(some)}
        db.execute(TAG.replace("{rows}", rows), values)
