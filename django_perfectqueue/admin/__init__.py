"""The door for people: see every task, steer it, and say who is entitled to what."""

from .changes import ChangeAdmin
from .dead_letters import DeadLetterAdmin
from .lanes import LaneAdmin
from .limits import LimitAdmin
from .shares import FairShareAdmin, QueueShareAdmin
from .tasks import TaskAdmin
from .usage import UsageAdmin
from .workers import WorkerAdmin

__all__ = [
    "ChangeAdmin",
    "DeadLetterAdmin",
    "FairShareAdmin",
    "LaneAdmin",
    "LimitAdmin",
    "QueueShareAdmin",
    "TaskAdmin",
    "UsageAdmin",
    "WorkerAdmin",
]
