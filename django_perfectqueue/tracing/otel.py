"""
Spans of OpenTelemetry, with TRACING: a submit, the wait of a task, and each attempt.

Names and attributes are those of OpenTelemetry's semantic conventions for messaging
(https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/). Data is never
exported, and what is sensitive in it has stars in errors.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.version import __version__

from . import PARENT, STATE, Trace, current, taken_along

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from django_perfectqueue.store import Lease

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

SYSTEM = "perfectqueue"
FLUSH = 5.0


@functools.cache
def tracer() -> Tracer:
    """
    Return what makes spans.

    Raise ConfigError where OpenTelemetry is not installed.
    """
    made: Tracer = api().get_tracer("django_perfectqueue", __version__)
    return made


def api() -> ModuleType:
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ConfigError(
            "TRACING needs the package opentelemetry-api: pip install 'django-perfectqueue[otel]'."
        ) from error
    return trace


def parent_of(trace: Trace | None) -> Context:
    """Return a trace as OpenTelemetry's context, in which there is nothing else."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if trace is None:
        return Context()
    carrier = {PARENT: trace.traceparent, STATE: trace.tracestate}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def described(
    operation: str, kind: str | None, queue: str, **attributes: str | int
) -> dict[str, str | int]:
    known: dict[str, str | int | None] = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        **attributes,
    }
    return {name: value for name, value in known.items() if value is not None and value != ""}


def sends(submit: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Wrap a method of a queue that submits tasks in a span, the parent of the tasks' spans."""

    @functools.wraps(submit)
    def sending(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not options().TRACING:
            return submit(self, *args, **kwargs)
        with send_span(getattr(self, "name", "")) as span:
            stored = submit(self, *args, **kwargs)
            if isinstance(stored, int):
                span.set_attribute("messaging.batch.message_count", stored)
            else:
                span.set_attribute("messaging.message.id", getattr(stored, "key", ""))
            return stored

    return sending


@contextmanager
def send_span(queue: str) -> Iterator[Span]:
    trace = api()
    beneath_span = trace.get_current_span().get_span_context().is_valid
    with tracer().start_as_current_span(
        f"send {queue}",
        context=None if beneath_span else parent_of(current()),
        kind=trace.SpanKind.PRODUCER,
        attributes=described("send", "send", queue),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            fail(span, path_of(type(error)), "")
            raise


@contextmanager
def process_span(lease: Lease, due: datetime, values: Mapping[str, object]) -> Iterator[Span]:
    """
    Record a span for an attempt, and one for its wait before that, since it was ``due``.

    Both are children of what has submitted the task, by what that has sent along; the
    attempt has a link to it as well, for those who rather go by links. Where nothing was
    sent along the wait begins a trace, and the attempt follows it.
    """
    trace = api()
    parent = parent_of(taken_along(values))
    sent = trace.get_current_span(parent).get_span_context()
    facts: dict[str, str | int] = {
        "messaging.message.id": lease.key,
        "perfectqueue.type": lease.type,
        "perfectqueue.user": lease.user,
        "perfectqueue.attempt": lease.tries,
    }
    begin = time.time_ns()
    wait = tracer().start_span(
        f"wait {lease.type}",
        context=parent,
        attributes=described("wait", None, lease.queue, **facts),
        start_time=min(begin, int(due.timestamp() * 1e9)),
    )
    wait.end(begin)
    if not sent.is_valid:
        parent = trace.set_span_in_context(wait, parent)
    with tracer().start_as_current_span(
        f"process {lease.type}",
        context=parent,
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(sent)] if sent.is_valid else [],
        attributes=described("process", "process", lease.queue, **facts),
        start_time=begin,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


def fail(span: Span, error: str, message: str, stack: str = "") -> None:
    """Record an error on a span, by its class."""
    attributes = {
        "exception.type": error,
        "exception.message": message,
        "exception.stacktrace": stack,
    }
    span.add_event("exception", {name: text for name, text in attributes.items() if text})
    span.set_attribute("error.type", error)
    span.set_status(api().StatusCode.ERROR)


def flush() -> None:
    """Send the spans recorded so far, before the process ends."""
    provider = api().get_tracer_provider()
    if hasattr(provider, "force_flush"):
        provider.force_flush(int(FLUSH * 1000))
