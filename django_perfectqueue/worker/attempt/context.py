"""The context in which a task runs: what a handler sets there is gone with it."""

from __future__ import annotations

import contextlib
from contextvars import Context, copy_context

from django.core.cache import caches

from django_perfectqueue.lib.running import running
from django_perfectqueue.payload import context
from django_perfectqueue.queue import AcquiredTask


def prepare() -> None:
    """
    Make what this thread keeps in its context, and its tasks are to share.

    Django's caches are of a context, and with them their connections: made in a task's own,
    each task would connect anew.
    """
    for alias in caches:
        with contextlib.suppress(Exception):
            caches[alias]


def context_for(task: AcquiredTask) -> Context:
    """Return a new context for a task, as this thread's is while it runs none; logs name it."""
    fresh = copy_context()
    fresh.run(running.set, task)
    return fresh


def restore(task: AcquiredTask) -> None:
    """
    Set in this context what a task has taken along of its submitter's.

    Raise PayloadError when that can't be read, and whatever a provider raises.
    """
    if task.lease.context is not None:
        context.restore(task.context)
