"""The context in which a task runs: what a handler sets there is gone with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import Context, copy_context
from typing import Any

from django.core.cache import caches
from django.utils import timezone

from django_perfectqueue import context, store, telemetry
from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.running import running

from .ending import Ending


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


@contextlib.contextmanager
def traced(task: AcquiredTask) -> Iterator[telemetry.Attempt]:
    """Have an attempt be a span of the trace that its submitter was in."""
    lease = task.lease
    due = max(lease.created_at, lease.run_at)
    with telemetry.process_span(
        queue=lease.queue,
        key=lease.key,
        type_=lease.type,
        user=lease.user,
        attempt=lease.tries,
        due=due if due <= timezone.now() else lease.created_at,
        values=taken_along(task),
    ) as attempt:
        yield attempt


def taken_along(task: AcquiredTask) -> dict[str, Any]:
    """Return what a task has taken along, or nothing where that can't be read."""
    try:
        return task.context
    except PayloadError:
        return {}


def tell(attempt: telemetry.Attempt, ending: Ending) -> None:
    """Tell on the span of an attempt how that has ended."""
    if ending.error is None:
        attempt.ended(ending.word)
        return
    why = store.Failure.of(ending.error)
    message, stack = map(ending.task.redacted, (why.message, why.traceback))
    attempt.ended(ending.word, why.error, message, stack)
