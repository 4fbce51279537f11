"""
The trace in which something happens, as W3C Trace Context defines it.

With TRACING it is that of OpenTelemetry's current span. Without, or where there is no
span, it is what the project itself has set in the context variables below, from the
headers of a request for instance.

Spans of OpenTelemetry, which need not be installed, are in ``tracing.otel``.

See https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple

from ..conf import options

logger = logging.getLogger("django_perfectqueue.tracing")

PARENT, STATE = "traceparent", "tracestate"
LONGEST = 512

TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace_id>[0-9a-f]{32})-(?P<span_id>[0-9a-f]{16})"
    r"-[0-9a-f]{2}(?P<more>-.*)?"
)
# The ``traceparent`` of what happens here, where OpenTelemetry has no span.
traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)

# The ``tracestate`` that goes with it.
tracestate: ContextVar[str | None] = ContextVar("tracestate", default=None)


class Trace(NamedTuple):
    """Where in which trace something happens, as the two headers say it."""

    traceparent: str
    tracestate: str


def read(parent: object, state: object = None) -> Trace | None:
    """Return the trace of two headers, or None; an invalid ``tracestate`` is left out."""
    if not isinstance(parent, str) or len(parent) > LONGEST:
        return None
    if (found := TRACEPARENT.fullmatch(parent)) is None:
        return None
    version, trace_id, span_id, more = found.group("version", "trace_id", "span_id", "more")
    known = version != "ff" and not (version == "00" and more)
    if not known or not (trace_id.strip("0") and span_id.strip("0")):
        return None
    return Trace(parent, checked_state(state))


def checked_state(state: object) -> str:
    """Return a ``tracestate`` that a header may have, or else an empty text."""
    is_header = isinstance(state, str) and len(state) <= LONGEST and state.isascii()
    return str(state) if is_header and str(state).isprintable() else ""


def current() -> Trace | None:
    """Return the trace in which this happens, or None."""
    if options().TRACING and (span := of_span()) is not None:
        return span
    if (parent := traceparent.get()) is None:
        return None
    found = read(parent, tracestate.get())
    if found is None:
        logger.debug("This is no traceparent, and is ignored: %r", parent)
    return found


def of_span() -> Trace | None:
    """Return where OpenTelemetry's current span is, or None where there is none."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    place = trace.get_current_span().get_span_context()
    if not place.is_valid:
        return None
    parent = f"00-{place.trace_id:032x}-{place.span_id:016x}-{place.trace_flags & 0xFF:02x}"
    return Trace(parent, place.trace_state.to_header())


def captured() -> dict[str, object]:
    """Return what a task is to take along of the trace."""
    if (trace := current()) is None:
        return {}
    values = {PARENT: trace.traceparent, STATE: trace.tracestate}
    return {name: value for name, value in values.items() if value}


def restore(values: Mapping[str, object]) -> None:
    """Make the trace of a task the current one in this context."""
    if (trace := taken_along(values)) is not None:
        traceparent.set(trace.traceparent)
        tracestate.set(trace.tracestate or None)


def taken_along(values: Mapping[str, object]) -> Trace | None:
    """Return the trace that a task has taken along."""
    return read(values.get(PARENT), values.get(STATE))
