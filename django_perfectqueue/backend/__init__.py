"""The door for Django's own tasks: name PerfectQueueBackend in ``TASKS``."""

from django_perfectqueue.compat import HAS_TASKS

if not HAS_TASKS:
    raise ImportError(
        "Django 5.2 has no tasks of its own: install django-perfectqueue[tasks], which"
        " brings them, or Django 6.0 or later."
    )

from .base import DummyBackend, ImmediateBackend, PerfectQueueBackend
from .definition import QueueTask, task

__all__ = ["DummyBackend", "ImmediateBackend", "PerfectQueueBackend", "QueueTask", "task"]
