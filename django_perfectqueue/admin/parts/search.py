"""Find tasks by their key or its beginning, within the index of (queue, key)."""

from __future__ import annotations

from django.http import HttpRequest

from django_perfectqueue.inspection.scope import in_scope, scope_of
from django_perfectqueue.lib.distinct import NAMES, distinct
from django_perfectqueue.models import Task, TaskQuerySet
from django_perfectqueue.queue import database

FOUND = 1_000


def queue_names(request: HttpRequest, *, limit: int = NAMES) -> list[str]:
    """Return the queues that have tasks, or the first so many of them; of one's users, if few."""
    rows = plain(database())
    if scope_of(request) is None:
        return distinct(rows, "queue", limit=limit)
    newest = in_scope(rows, request, "user").order_by("-pk").values_list("queue", flat=True)
    return sorted(set(newest[:FOUND]))[:limit]


def one_queue(request: HttpRequest) -> bool:
    """Return whether a list shows a single queue: it was chosen, or is the only one."""
    return "queue" in request.GET or len(queue_names(request, limit=2)) < 2


def ids_by_key(start: str, request: HttpRequest) -> list[int]:
    """
    Return the tasks whose key is this or begins so: the first FOUND of each queue, by key.

    They are of the queue that was chosen, or else of all.
    """
    queue = request.GET.get("queue")
    queues = [queue] if queue else queue_names(request)
    found = plain(database()).key_begins(start)
    rows = in_scope(found, request, "user").order_by("key")
    return [
        task_id
        for queue in queues
        for task_id in rows.filter(queue=queue).values_list("pk", flat=True)[:FOUND]
    ]


def plain(using: str) -> TaskQuerySet:
    """Return tasks without their status, and so without a join."""
    return TaskQuerySet(Task, using=using)
