"""
The door for programs: submit tasks, look at them, steer them, and take them.

Everything here runs in the caller's transaction where there is one.
"""

from .acquired import GRAVE, AcquiredTask, add_line, note_of
from .deferred import Deferred
from .door import Queue, Task, Window, database
from .given import (
    KEY_LENGTH,
    QUEUE_LENGTH,
    OnConflict,
    Span,
    When,
    checked,
    checked_span,
    encoded,
    span,
)

__all__ = [
    "GRAVE",
    "KEY_LENGTH",
    "QUEUE_LENGTH",
    "AcquiredTask",
    "Deferred",
    "OnConflict",
    "Queue",
    "Span",
    "Task",
    "When",
    "Window",
    "add_line",
    "checked",
    "checked_span",
    "database",
    "encoded",
    "note_of",
    "span",
]
