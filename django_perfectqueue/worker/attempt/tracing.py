"""Tells an attempt to OpenTelemetry."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.tracing import otel

from .ending import Ending


def traced(task: AcquiredTask) -> AbstractContextManager[otel.Attempt]:
    """Have an attempt be a span of the trace that its submitter was in."""
    lease = task.lease
    due = max(lease.created_at, lease.run_at)
    return otel.process_span(
        queue=lease.queue,
        key=lease.key,
        type_=lease.type,
        user=lease.user,
        attempt=lease.tries,
        due=due if due <= timezone.now() else lease.created_at,
        values=taken_along(task),
    )


def taken_along(task: AcquiredTask) -> dict[str, Any]:
    """Return what a task has taken along, or nothing where that can't be read."""
    try:
        return task.context
    except PayloadError:
        return {}


def end_span(attempt: otel.Attempt, ending: Ending) -> None:
    """Tell on the span of an attempt how that has ended."""
    if ending.error is None:
        attempt.ended(ending.word)
        return
    why = store.Failure.of(ending.error)
    message, stack = map(ending.task.redacted, (why.message, why.traceback))
    attempt.ended(ending.word, why.error, message, stack)
