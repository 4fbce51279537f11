"""The context in which a task runs; it ends with the attempt."""

from __future__ import annotations

import contextlib
from contextvars import Context, copy_context

from django.core.cache import caches

from django_perfectqueue.lib.running import running
from django_perfectqueue.payload import context
from django_perfectqueue.queue import AcquiredTask


def prepare() -> None:
    """
    Create the caches in the context of this thread, whose tasks share them.

    Django keeps caches and their connections per context. Created in the context of a
    task, each task would open new connections.
    """
    for alias in caches:
        with contextlib.suppress(Exception):
            caches[alias]


def context_for(task: AcquiredTask) -> Context:
    """Return a copy of this context for a task, by which logs name the task."""
    fresh = copy_context()
    fresh.run(running.set, task)
    return fresh


def restore(task: AcquiredTask) -> None:
    """
    Set the context values that the submitter stored with a task.

    Raise PayloadError if they can't be read, and any exception of a provider.
    """
    if task.lease.context is not None:
        context.restore(task.context)
