"""Which task runs in this thread or coroutine."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

# The AcquiredTask whose handler runs, or None.
running: ContextVar[Any] = ContextVar("running", default=None)

# What is called first in the context of each attempt; tracing.sentry replaces it.
begin: Callable[[Any], object] = running.set
