"""Send signals for tasks that nobody in this process holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from django.db import connections, transaction
from django.dispatch import Signal

from django_perfectqueue.signals import TaskNames, is_heard, send_all

from ..database.dialects.base import numbers
from ..database.session import Session
from ..database.transaction import shared_operations

WHOM = """
SELECT "id", "queue", "key", "type", "user" FROM "perfectqueue_task" WHERE "id" IN ({ids})
"""


def announce(signal: Signal, tasks: Iterable[object], *, using: str) -> None:
    """
    Send a signal for each of these leases or submissions after the caller's transaction has
    committed, or at once where there is none.

    Nothing is sent where the caller has switched autocommit off: Django does not say when
    such a transaction commits.
    """
    if is_heard(signal):
        after_commit(signal, [TaskNames.of(task) for task in tasks], using=using)


def announce_ids(db: Session, steps: Iterable[tuple[Signal, Sequence[int]]]) -> None:
    """Do what announce() does for tasks of which only the ids are known."""
    heard = [(signal, ids) for signal, ids in steps if ids and is_heard(signal)]
    if not heard:
        return
    every = numbers(sorted({task_id for _signal, ids in heard for task_id in ids}))
    rows = db.execute(WHOM.replace("{ids}", every)).fetchall()
    known = {task_id: TaskNames(*names) for task_id, *names in rows}
    for signal, ids in heard:
        tasks = [known[task_id] for task_id in ids if task_id in known]
        after_commit(signal, tasks, using=db.cursor.db.alias)


def after_commit(signal: Signal, tasks: list[TaskNames], *, using: str) -> None:
    connection = connections[using]
    act = partial(send, signal, tasks)
    if connection.in_atomic_block:
        transaction.on_commit(act, using=using, robust=True)
    elif connection.autocommit:
        act()


def send(signal: Signal, tasks: list[TaskNames]) -> None:
    with shared_operations():
        send_all(signal, tasks)
