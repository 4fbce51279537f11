"""The rows that go with a task, as statements."""

from __future__ import annotations

FORGET_TASKS = 'DELETE FROM "perfectqueue_task" WHERE "id" IN ({ids})'

FORGET_STORY = (
    'DELETE FROM "perfectqueue_attempt" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_journal" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_deadletter" WHERE "task_id" IN ({ids})',
    'DELETE FROM "perfectqueue_dependency" WHERE "child_id" IN ({ids})',
    'DELETE FROM "perfectqueue_batchmember" WHERE "task_id" IN ({ids})',
)
"""What is written beside a task."""
