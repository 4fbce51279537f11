"""The door for people: see every task, steer it, and say who is entitled to what."""

from .dead_letters import DeadLetterAdmin
from .lanes import LaneAdmin
from .shares import FairShareAdmin
from .tasks import TaskAdmin
from .usage import UsageAdmin

__all__ = ["DeadLetterAdmin", "FairShareAdmin", "LaneAdmin", "TaskAdmin", "UsageAdmin"]
