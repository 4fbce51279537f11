"""Which task runs in this thread or coroutine."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

running: ContextVar[Any] = ContextVar("running", default=None)
"""The AcquiredTask whose handler runs, or None."""
