"""Delete tasks, and the rows that go with them."""

from __future__ import annotations

from collections.abc import Collection

from ..database.session import Session

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
