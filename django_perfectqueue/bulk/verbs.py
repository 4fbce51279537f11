"""Do a verb to tasks: to each that is named, or to all of a chunk by some statements."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
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
REFUSED, NEXT = "refused", "next"
# Nothing is recorded of the first, and what the store records with the change.
NOT_SIGNED = (REFUSED, "moved", "edited", "copied")
# What is done to all of a chunk by some statements.
TOGETHER = ("retry", "delete")
PAGE = 500

Names = Mapping[str, Sequence[tuple[str, str]]]


class Answer(NamedTuple):
    """What was done to a task, with the key of a copy; or why it was not."""

    task: Found
    word: str = ""
    copy: str = ""
    error: Exception | None = None


def run(operation: Operation, ids: Sequence[int], *, using: str) -> Iterator[Answer]:
    """
    Do the operation to each of these tasks, in a transaction of its own; record the person last.

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
                answer = act(operation, found, cancelled, using=using)
            except REFUSALS as error:
                yield Answer(found, error=error)
                continue
            done[answer.word].append((operation.to or found[1], found[2]))
            yield answer
    finally:
        sign(operation, done, using=using)


def act(operation: Operation, found: Found, cancelled: Mapping[int, bool], *, using: str) -> Answer:
    """Do the operation to one task. Raise one of REFUSALS where that is not possible."""
    (task_id, queue, key), verb = found, operation.verb
    if verb == "cancel":
        over = cancelled.get(task_id)
        if over is None:
            over = store.dependencies.cancel_request(task_id, using=using)
        return Answer(found, CANCELLED[over])
    if verb == "copy":
        if not key:
            raise NotFoundError(f"There is no task with the id {task_id}.")
        task = Queue(queue, using=using)[key]
        return Answer(
            found,
            "copied",
            copy=task.copy(from_step=operation.from_step or None, by=operation.by).key,
        )
    if revision := operation.revision():
        store.steer(store.revise, task_id, revision, using=using)
    if verb == "delete":
        store.upkeep.delete_ended(task_id, using=using)
    elif verb == "priority":
        store.steer(store.set_priority, task_id, operation.priority, using=using)
    elif verb == "retry":
        store.steer(store.retry, task_id, using=using)
    elif verb == "finish":
        store.steer(store.force_finish, task_id, using=using)
    return Answer(found, DONE[verb])


def sign(
    operation: Operation, done: Names, *, using: str, more: Mapping[str, object] | None = None
) -> None:
    """Record who did it to tasks, given by queue and key for each word of what was done."""
    for word, names in done.items():
        if word not in NOT_SIGNED:
            store.records.sign(names, word, by=operation.by, using=using, more=more)


def in_place(
    operation: Operation, chunks: Iterable[Sequence[Found]], *, using: str
) -> Iterator[Counter[str]]:
    """Do the operation here, a chunk a transaction; yield how often what was done."""

    def act(chunk: Sequence[Found]) -> Counter[str]:
        with store.database.together(using=using):
            return act_on(operation, chunk, using=using)

    for chunk in chunks:
        with store.database.single_operation():
            yield store.database.with_retries(partial(act, chunk), using=using)


def chunks_of(operation: Operation, *, using: str) -> Iterator[list[Found]]:
    """Yield the tasks that match, by their ids."""
    cursor, look = 0, operation.selection.chunk
    while cursor < operation.until:
        left = range(cursor + 1, operation.until + 1)
        chunk, cursor = look(operation.verb, left, PAGE, using=using)
        yield chunk


def act_on(
    operation: Operation,
    chunk: Sequence[Found],
    *,
    using: str,
    more: Mapping[str, object] | None = None,
) -> Counter[str]:
    """Do the operation to these tasks; record it with ``more``; return how often what was done."""
    if operation.verb == "cancel":
        words = cancel(operation, chunk, using=using)
    else:
        words = {found: revise(operation, found, using=using) for found in chunk}
    left, achieved = [found[0] for found, word in words.items() if word == NEXT], set[int]()
    if operation.verb == "retry":
        achieved = store.retry(left, using=using) if left else set()
    else:
        swept = store.upkeep.Swept(doomed=dict.fromkeys(left, ""), reached=None, stopped=False)
        achieved = set(store.upkeep.purge(swept, using=using).doomed)
    done: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (task_id, queue, key), word in words.items():
        if word == NEXT:
            word = DONE[operation.verb] if task_id in achieved else REFUSED
        is_moved = operation.to and word in ("retried", "moved")
        done[word].append((operation.to if is_moved else queue, key))
    sign(operation, done, using=using, more=more)
    return Counter({word: len(names) for word, names in done.items()})


def cancel(operation: Operation, chunk: Sequence[Found], *, using: str) -> dict[Found, str]:
    """Cancel the tasks of a chunk with those that wait for them and match, too."""
    names = {found[0]: found for found in chunk}

    def among(ids: Collection[int]) -> Collection[int]:
        rows = operation.selection.tasks("cancel", using=using)
        rows = rows.filter(pk__in=ids, pk__lte=operation.until)
        waiting = {found[0]: found for found in rows.values_list("pk", "queue", "key")}
        names.update(waiting)
        return waiting

    chosen = store.dependencies.choose(list(names), using=using, among=among)
    done = store.cancel_now(chosen.ids, using=using)
    words = {names[task_id]: CANCELLED[is_over] for task_id, is_over in done.items()}
    return {**dict.fromkeys(chunk, REFUSED), **words}


def revise(operation: Operation, found: Found, *, using: str) -> str:
    """Move or edit a task where that is wanted; return a word for what was done, or NEXT."""
    task_id, queue, _key = found
    if revision := operation.revision(queue):
        try:
            store.revise([task_id], revision, using=using)
        except REFUSALS:
            return REFUSED
    if operation.verb in TOGETHER:
        return NEXT
    return DONE[operation.verb] if revision else REFUSED
