"""
The door for programs: submit tasks, look at them, steer them, and take them.

Everything here runs in the caller's transaction where there is one.
"""

from django_perfectqueue.payload.inputs import Duration, When
from django_perfectqueue.store.database.transaction import database

from .acquired import AcquiredTask, Deferred
from .batch import Batch, batch_of
from .queue import Queue
from .reporting import add_line, note_of
from .submission import ARGUMENTS, TIMES, TaskOptions, TaskTerms, submission_of
from .task_handle import TaskHandle

# What programs use; the rest is for the rooms above.
__all__ = [
    "AcquiredTask",
    "Batch",
    "Duration",
    "Queue",
    "TaskHandle",
    "TaskOptions",
    "When",
    "database",
]
