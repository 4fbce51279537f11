"""Skips what needs Django's tasks where there are none, and finds who was notified."""

import unittest
from contextlib import contextmanager
from datetime import datetime, timezone

from django_perfectqueue import compat

if not compat.HAS_TASKS:
    raise unittest.SkipTest("Neither Django nor django-tasks has tasks here.")

LATER = datetime(2040, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
LOGGER = "django.tasks" if compat.HAS_NATIVE_TASKS else "django_tasks"
BACKEND = "django_perfectqueue.backend.PerfectQueueBackend"


def tasks_with(**options):
    """Return TASKS with one backend of ours, and what its settings have beside the path."""
    return {"default": {"BACKEND": BACKEND, **options}}


@contextmanager
def listening(*names):
    """Collect the signals of Django's tasks as (name, sender, status)."""
    heard = []

    def hear(name):
        def receiver(sender, task_result, **kwargs):
            heard.append((name, sender, str(task_result.status.value)))

        return receiver

    receivers = {name: hear(name) for name in names}
    for name, receiver in receivers.items():
        getattr(compat.signals, name).connect(receiver, weak=False)
    try:
        yield heard
    finally:
        for name, receiver in receivers.items():
            getattr(compat.signals, name).disconnect(receiver)
