"""Leaving out of a traceback how a handler was called."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

Raised = TypeVar("Raised", bound=BaseException)

OURS = __name__.partition(".")[0]


def from_handler(error: Raised) -> Raised:
    """Have an error's traceback begin in the handler; it stays whole if none of it is there."""
    entry = error.__traceback__
    while entry is not None and is_ours(entry):
        entry = entry.tb_next
    return error if entry is None else error.with_traceback(entry)


def is_ours(entry: TracebackType) -> bool:
    module: str = entry.tb_frame.f_globals.get("__name__") or ""
    return module.partition(".")[0] == OURS
