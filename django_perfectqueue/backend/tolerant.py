"""Django's own backends for tests, for tasks that have words of a queue."""

from __future__ import annotations

from django_perfectqueue import compat

from .definition import QueueTask


class ImmediateBackend(compat.ImmediateBackend):
    """Runs a task at once, as Django's own does; the words of a queue do nothing."""

    task_class = QueueTask


class DummyBackend(compat.DummyBackend):
    """Keeps tasks in memory, as Django's own does; the words of a queue do nothing."""

    task_class = QueueTask
