"""
The trace that a task is part of: carried over from its submitter, and passed on.

Spans of OpenTelemetry, which need not be installed, are in ``tracing.otel``.
"""

from .trace_context import (
    PARENT,
    STATE,
    captured,
    current,
    ids,
    read,
    restore,
    traceparent,
    tracestate,
)

__all__ = [
    "PARENT",
    "STATE",
    "captured",
    "current",
    "ids",
    "read",
    "restore",
    "traceparent",
    "tracestate",
]
