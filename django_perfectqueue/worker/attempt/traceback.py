"""Remove the frames of this package from a traceback."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

Raised = TypeVar("Raised", bound=BaseException)

OURS = __name__.partition(".")[0]


def from_handler(error: Raised) -> Raised:
    """Cut a traceback to begin in the handler; keep it whole if no frame is the handler's."""
    entry = error.__traceback__
    while entry is not None and is_ours(entry):
        entry = entry.tb_next
    return error if entry is None else error.with_traceback(entry)


def is_ours(entry: TracebackType) -> bool:
    module: str = entry.tb_frame.f_globals.get("__name__") or ""
    return module.partition(".")[0] == OURS
