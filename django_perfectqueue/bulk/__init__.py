"""Do one thing to tasks that are named, or to all that match: then a task does it in chunks."""

from .forget import forget_user
from .operation import RATE, Operation, Verb, submit_bulk
from .run import Answer, run
from .selection import COUNTED, TYPE, Preview, Selection, in_time, preview, within

__all__ = [
    "COUNTED",
    "RATE",
    "TYPE",
    "Answer",
    "Operation",
    "Preview",
    "Selection",
    "Verb",
    "forget_user",
    "in_time",
    "preview",
    "run",
    "submit_bulk",
    "within",
]
