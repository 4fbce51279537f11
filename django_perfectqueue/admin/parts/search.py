"""Find tasks by their key or its beginning, within the index of (queue, key)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from django.http import HttpRequest

from django_perfectqueue.inspection.scope import in_scope, scope_of
from django_perfectqueue.models import Task, TaskQuerySet
from django_perfectqueue.queue import database
from django_perfectqueue.store.records.counts import names

FOUND = 1_000
KEPT = "_perfectqueue_queues"


def queue_names(request: HttpRequest) -> list[str]:
    """
    Return the first queues that have tasks; for staff with a scope those of their newest tasks.

    They are read once for each request.
    """
    if not hasattr(request, KEPT):
        if scope_of(request) is None:
            found = names(using=database()).queues
        else:
            rows = in_scope(plain(database()), request, "user").order_by("-pk")
            found = sorted(set(rows.values_list("queue", flat=True)[:FOUND]))
        setattr(request, KEPT, found)
    return cast("list[str]", getattr(request, KEPT))


def one_queue(request: HttpRequest) -> bool:
    """Return whether a list shows a single queue: it was chosen, or is the only one."""
    return "queue" in request.GET or len(queue_names(request)) < 2


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


def numbers(words: Sequence[str]) -> list[int]:
    """Return the words that are ids, each once."""
    return list(dict.fromkeys(int(word) for word in words if word.isdecimal() and len(word) < 19))
