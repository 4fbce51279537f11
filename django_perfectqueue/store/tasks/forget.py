"""Delete tasks, and the rows that go with them."""

from __future__ import annotations

from collections.abc import Collection

from ..database.session import Session

STORY = (
    'DELETE FROM "perfectqueue_attempt" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_journal" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_deadletter" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_batchmember" WHERE "task_id" IN ({ids})',
)
BY_ID = {
    "perfectqueue_step": 'SELECT "id" FROM "perfectqueue_step" WHERE "task_id" IN ({ids})',
    "perfectqueue_tag": 'SELECT "id" FROM "perfectqueue_tag" WHERE "task_id" IN ({ids})',
    "perfectqueue_watch": 'SELECT "id" FROM "perfectqueue_watch" WHERE "task_id" IN ({ids})',
    "perfectqueue_dependency": (
        'SELECT "id" FROM "perfectqueue_dependency" WHERE "child_id" IN ({ids})'
    ),
}


def forget_story(db: Session, ids: Collection[int]) -> None:
    """Delete what is written beside tasks."""
    for statement in STORY:
        db.execute(statement, ids=ids)
    # Deleted by id: by the task MariaDB would wait for those who write of the next ones.
    for table, statement in BY_ID.items():
        if rows := db.rows(statement + db.dialect.current_clause(db.cursor), ids=ids):
            db.dialect.delete(db.cursor, table, [id_ for (id_,) in rows])


def forget_tasks(db: Session, ids: Collection[int]) -> None:
    """Delete the rows of tasks themselves."""
    db.dialect.delete(db.cursor, "perfectqueue_task", ids)
