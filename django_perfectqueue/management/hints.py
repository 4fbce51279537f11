"""What to tell someone who asked for a task that isn't there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.utils.translation import gettext as _

from django_perfectqueue.exceptions import NotFoundError
from django_perfectqueue.models import Task as Row
from django_perfectqueue.queue import Task

from .base import nearest

QUEUES = 50
NEIGHBOURS = 50


@contextmanager
def with_hint(task: Task) -> Iterator[None]:
    """Add to a NotFoundError where the task may be found."""
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(f"{error}{hint(task)}") from error


def hint(task: Task) -> str:
    """Name the other queue that has the key, or else the nearest key; by an index or not at all."""
    queues = list(queue_names(task.using))
    elsewhere = Row.objects.using(task.using).filter(queue__in=queues, key=task.key)
    for queue in elsewhere.values_list("queue", flat=True)[:1]:
        return " " + str(_("Queue '%s' has one.") % queue)
    return nearest(task.key, neighbours(task))


def queue_names(using: str) -> Iterator[str]:
    """Yield the names of the queues that have tasks, with one look into the index for each."""
    names = Row.objects.using(using).order_by("queue", "key").values_list("queue", flat=True)
    last = ""
    for _turn in range(QUEUES):
        if not (found := list(names.filter(queue__gt=last)[:1])):
            return
        [last] = found
        yield last


def neighbours(task: Task) -> list[str]:
    keys = task.queue.list().values_list("key", flat=True)
    above = keys.filter(key__gt=task.key).order_by("key")[:NEIGHBOURS]
    below = keys.filter(key__lt=task.key).order_by("-key")[:NEIGHBOURS]
    return [*above, *below]
