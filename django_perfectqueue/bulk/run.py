"""Do a verb to tasks that are named, here and now: for the commands and the admin's lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django_perfectqueue import store
from django_perfectqueue.exceptions import (
    IdempotentError,
    InvalidTaskError,
    NotFoundError,
    NotSupportedError,
    PayloadError,
)
from django_perfectqueue.models import Task, TaskQuerySet
from django_perfectqueue.payload.inputs import rewriter
from django_perfectqueue.queue import Queue

from .operation import Operation
from .selection import Found

# Why a task is left out. What may break off a handler that does it is not among them: a cancel
# request, a lost lease, a time limit.
REFUSALS = (IdempotentError, InvalidTaskError, NotFoundError, NotSupportedError, PayloadError)
DONE = {
    "retry": "retried",
    "finish": "finished",
    "delete": "deleted",
    "priority": "reprioritized",
    "move": "moved",
    "edit": "edited",
}
# Of a cancel, by whether the task is over.
CANCELLED = {True: "cancelled", False: "requested"}
# What the store records with the change.
SIGN_THEMSELVES = ("moved", "edited", "copied")


class Answer(NamedTuple):
    """What was done to a task, with the key of a copy; or why it was not."""

    task: Found
    word: str = ""
    copy: str = ""
    error: Exception | None = None


def run(operation: Operation, ids: Sequence[int], *, using: str) -> Iterator[Answer]:
    """
    Do it to each of these tasks, in a transaction of its own; record who did it at the end.

    Tasks are cancelled at once, those that wait before those for which they wait. One for
    which others wait is refused, but for an operation on a batch.
    """
    rows = TaskQuerySet(Task, using=using).filter(pk__in=ids).values_list("pk", "queue", "key")
    tasks = {found[0]: found for found in rows}
    cancelled: dict[int, bool] = {}
    if operation.verb == "cancel":
        chosen = (
            ids if operation.selection.batch else store.dependencies.choose(ids, using=using).ids
        )
        cancelled = store.cancel_each(chosen, using=using)
    done: dict[str, list[tuple[str, str]]] = defaultdict(list)
    try:
        for task_id in ids:
            found = tasks.get(task_id, (task_id, "", ""))
            try:
                over = cancelled.get(task_id)
                answer = (
                    act(operation, found, using=using)
                    if over is None
                    else Answer(found, CANCELLED[over])
                )
            except REFUSALS as error:
                yield Answer(found, error=error)
                continue
            queue, key = found[1:]
            done[answer.word].append((operation.to or queue, key))
            yield answer
    finally:
        for word, names in done.items():
            if word not in SIGN_THEMSELVES:
                store.records.sign(names, word, by=operation.by, using=using)


def act(operation: Operation, found: Found, *, using: str) -> Answer:
    """Do it to one task. Raise one of REFUSALS where that is not possible."""
    task_id, queue, key = found
    if operation.verb == "copy":
        task = Queue(queue, using=using)[key] if key else None
        if task is None:
            raise NotFoundError(f"There is no task with the id {task_id}.")
        return Answer(found, "copied", copy=task.copy(by=operation.by).key)
    if operation.verb == "cancel":
        return Answer(found, CANCELLED[store.cancel_request(task_id, using=using)])
    if operation.to or operation.patch is not None:
        rewrite = None if operation.patch is None else rewriter(operation.patch)
        revision = store.Revision(queue=operation.to, rewrite=rewrite, by=operation.by)
        store.steer(store.revise, task_id, revision, using=using)
    verb = operation.verb
    if verb == "delete":
        store.upkeep.delete_ended(task_id, using=using)
    elif verb == "retry":
        store.steer(store.retry, task_id, using=using)
    elif verb == "finish":
        store.steer(store.force_finish, task_id, using=using)
    elif verb == "priority":
        store.steer(store.set_priority, task_id, operation.priority, using=using)
    return Answer(found, DONE[verb])
