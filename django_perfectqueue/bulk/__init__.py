"""Do one thing to all tasks that match a filter: a task of the queue itself does it in chunks."""

from .operation import RATE, Operation, Verb, submit_bulk
from .selection import COUNTED, TYPE, Preview, Selection, in_time, preview, within

__all__ = [
    "COUNTED",
    "RATE",
    "TYPE",
    "Operation",
    "Preview",
    "Selection",
    "Verb",
    "in_time",
    "preview",
    "submit_bulk",
    "within",
]
