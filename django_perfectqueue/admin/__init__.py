"""The door for people: see every task, steer it, and say who is entitled to what."""

from .dead_letters import DeadLetterAdmin
from .lanes import LaneAdmin
from .shares import FairShareAdmin
from .tasks import TaskAdmin
from .workers import WorkerAdmin

__all__ = ["DeadLetterAdmin", "FairShareAdmin", "LaneAdmin", "TaskAdmin", "WorkerAdmin"]
