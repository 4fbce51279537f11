"""Do one thing to tasks that are named, or to all that match: then a task does it in chunks."""

from .forget import forget_user
from .operation import RATE, Operation, Verb, submit_bulk
from .selection import COUNTED, TYPE, Preview, Selection, in_time, preview, within
from .verbs import Answer, run

# What programs use; the rest is for the rooms above.
__all__ = ["Operation", "Selection", "forget_user", "preview", "submit_bulk"]
