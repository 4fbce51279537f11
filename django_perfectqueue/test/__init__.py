"""The door for tests: run what is due in place, look at what was submitted, make tasks."""

from .assertions import QueueAssertions, QueueTestCase
from .drain import Drained, adrain, drain
from .eager import eager
from .factories import make_task
from .inline_runner import Run
from .submitted import SubmittedTask, submitted

__all__ = [
    "Drained",
    "QueueAssertions",
    "QueueTestCase",
    "Run",
    "SubmittedTask",
    "adrain",
    "drain",
    "eager",
    "make_task",
    "submitted",
]
