"""Django's own backends for tests, for tasks that have words of a queue."""

from __future__ import annotations

from collections.abc import Iterable

from django_perfectqueue import compat

from .base import TaskCall
from .definition import QueueTask


class Tolerant(compat.BaseTaskBackend):
    """Takes the words of a queue, which do nothing, and many tasks one by one."""

    task_class = QueueTask

    def enqueue_many(self, calls: Iterable[TaskCall]) -> object:
        return [self.enqueue(task, list(args), dict(kwargs)) for task, args, kwargs in calls]


class ImmediateBackend(Tolerant, compat.ImmediateBackend):
    """Runs a task at once, as Django's own does."""


class DummyBackend(Tolerant, compat.DummyBackend):
    """Keeps tasks in memory, as Django's own does."""
