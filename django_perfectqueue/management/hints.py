"""Hints for a task, a queue or a group that does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django_perfectqueue.exceptions import NotFoundError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.models import DeadLetter, Task, TaskQuerySet
from django_perfectqueue.queue import Queue, TaskHandle

NEIGHBOURS = 50
LISTED = 10


@contextmanager
def with_hint(task: TaskHandle) -> Iterator[None]:
    """Add to a NotFoundError where the task may be found."""
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(f"{error}{hint(task)}") from error


def hint(task: TaskHandle) -> str:
    """Name the other queue that has the key, or else the nearest key; by an index or not at all."""
    elsewhere = Task.objects.using(task.using).filter(queue__in=queues(task.using), key=task.key)
    for queue in elsewhere.values_list("queue", flat=True)[:1]:
        return f" Queue '{queue}' has one."
    return nearest(task.key, neighbours(task))


def queues(using: str) -> list[str]:
    """Return the names of the queues that have tasks."""
    return distinct(TaskQuerySet(Task, using=using), "queue")


def no_tasks(queue: Queue) -> str:
    """Say that a queue is empty, and what else there is, for who asked for the wrong one."""
    return f"Queue '{queue.name}' has no tasks." + instead(queue.name, queues(queue.using))


def no_group(queue: Queue, group: str) -> str:
    """Say that no task ended for this reason, and for which ones others did."""
    sentence = f"No task of queue '{queue.name}' ended for the reason '{group}'."
    return sentence + instead(group, groups(queue))


def instead(word: str, words: list[str]) -> str:
    """Return the word that was meant, or else those that there are."""
    listed = ", ".join(f"'{name}'" for name in words[:LISTED])
    return nearest(word, words) or (f" There is {listed}." if words else "")


def groups(queue: Queue) -> list[str]:
    """Return the groups of its dead letters, in the order of the index of groups."""
    return distinct(DeadLetter.objects.using(queue.using).filter(task__queue=queue.name), "group")


def neighbours(task: TaskHandle) -> list[str]:
    keys = task.queue.list().values_list("key", flat=True)
    above = keys.filter(key__gt=task.key).order_by("key")[:NEIGHBOURS]
    below = keys.filter(key__lt=task.key).order_by("-key")[:NEIGHBOURS]
    return [*above, *below]
