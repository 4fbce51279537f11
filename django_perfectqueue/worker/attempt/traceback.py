"""What a handler has raised, without what this package and broken statements add."""

from __future__ import annotations

from types import TracebackType
from typing import Any, cast

from django.db import Error, connections

from django_perfectqueue.exceptions import (
    CancelRequestedError,
    PreemptedError,
    ProcessStopError,
    TimeLimitError,
)

INTERRUPTS = (CancelRequestedError, PreemptedError, TimeLimitError, ProcessStopError)
OURS = __name__.partition(".")[0]


def from_handler(error: BaseException) -> BaseException:
    """
    Return what a handler has raised, its traceback cut to begin in the handler; it is kept whole
    if no frame is the handler's.
    """
    error = interrupt_behind(error)
    entry = error.__traceback__
    while entry is not None and is_ours(entry):
        entry = entry.tb_next
    return error if entry is None else error.with_traceback(entry)


def interrupt_behind(error: BaseException) -> BaseException:
    """Return the interrupt that broke a statement off where the rollback then failed."""
    drivers = (cast(Any, each).Database.Error for each in connections.all(initialized_only=True))
    behind = error.__context__ if isinstance(error, (Error, *drivers)) else None
    while behind is not None and not isinstance(behind, INTERRUPTS):
        behind = behind.__context__
    return behind or error


def is_ours(entry: TracebackType) -> bool:
    module: str = entry.tb_frame.f_globals.get("__name__") or ""
    return module.partition(".")[0] == OURS
