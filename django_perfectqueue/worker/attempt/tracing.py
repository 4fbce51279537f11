"""OpenTelemetry spans of attempts."""

from __future__ import annotations

from contextlib import AbstractContextManager

from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.tracing import otel

from .ending import AttemptEnd


def traced(task: AcquiredTask) -> AbstractContextManager[otel.TracedAttempt]:
    """Return a span for an attempt, in the trace of its submitter."""
    lease = task.lease
    due = max(lease.created_at, lease.run_at)
    since = due if due <= timezone.now() else lease.created_at
    return otel.process_span(lease, since, context_values(task))


def context_values(task: AcquiredTask) -> dict[str, object]:
    """Return the context values of a task; none if they can't be read."""
    try:
        return task.context
    except PayloadError:
        return {}


def end_span(attempt: otel.TracedAttempt, ending: AttemptEnd) -> None:
    """Write the result of an attempt to its span."""
    if ending.error is None:
        attempt.ended(ending.word)
        return
    why = store.Failure.of(ending.error)
    message, stack = map(ending.task.redacted, (why.message, why.traceback))
    attempt.ended(ending.word, why.error, message, stack)
