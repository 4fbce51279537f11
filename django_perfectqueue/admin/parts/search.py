"""Find tasks by their key or its beginning, within the index of (queue, key)."""

from __future__ import annotations

from django.http import HttpRequest

from django_perfectqueue.lib.distinct import NAMES, distinct
from django_perfectqueue.models import Task, TaskQuerySet
from django_perfectqueue.queue import database

FOUND = 1_000


def queue_names(using: str, *, limit: int = NAMES) -> list[str]:
    """Return the queues that have tasks, or the first so many of them."""
    return distinct(plain(using), "queue", limit=limit)


def one_queue(request: HttpRequest) -> bool:
    """Return whether a list shows a single queue: it was chosen, or is the only one."""
    return "queue" in request.GET or len(queue_names(database(), limit=2)) < 2


def ids_by_key(start: str, queues: list[str], *, using: str) -> list[int]:
    """Return the tasks whose key is this or begins so: the first FOUND of each queue, by key."""
    rows = plain(using).key_begins(start).order_by("key")
    return [
        task_id
        for queue in queues
        for task_id in rows.filter(queue=queue).values_list("pk", flat=True)[:FOUND]
    ]


def plain(using: str) -> TaskQuerySet:
    """Return tasks without their status, and so without a join."""
    return TaskQuerySet(Task, using=using)
