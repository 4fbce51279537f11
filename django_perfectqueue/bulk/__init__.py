"""Do one thing to all tasks that match a filter: a task of the queue itself does it in chunks."""

from .operation import RATE, TYPE, Operation, Verb, submit_bulk
from .selection import COUNTED, Preview, Selection, preview

__all__ = [
    "COUNTED",
    "RATE",
    "TYPE",
    "Operation",
    "Preview",
    "Selection",
    "Verb",
    "preview",
    "submit_bulk",
]
