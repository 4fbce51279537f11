"""The door for tests: run what is due in place, look at what was submitted, make tasks."""

from .assertions import QueueAssertions, QueueTestCase
from .drain import adrain, drain
from .eager import eager
from .factories import make_task
from .recording import Recording, recording
from .report import Drained, Run
from .run_handler import RehearsedTask, make_acquired, run_handler
from .submitted import SubmittedTask, submitted

__all__ = [
    "Drained",
    "QueueAssertions",
    "QueueTestCase",
    "Recording",
    "RehearsedTask",
    "Run",
    "SubmittedTask",
    "adrain",
    "drain",
    "eager",
    "make_acquired",
    "make_task",
    "recording",
    "run_handler",
    "submitted",
]
