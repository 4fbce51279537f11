"""The door for people: see every task, steer it, and say who is entitled to what."""

from .pages.batches import BatchAdmin
from .pages.changes import ChangeAdmin
from .pages.dead_letters import DeadLetterAdmin
from .pages.lanes import AccountAdmin
from .pages.limits import LimitAdmin
from .pages.overview import OverviewAdmin
from .pages.schedules import ScheduleAdmin
from .pages.shares import FairShareAdmin, QueueShareAdmin
from .pages.tasks import TaskAdmin
from .pages.usage import UsageAdmin
from .pages.workers import WorkerAdmin

__all__ = [
    "AccountAdmin",
    "BatchAdmin",
    "ChangeAdmin",
    "DeadLetterAdmin",
    "FairShareAdmin",
    "LimitAdmin",
    "OverviewAdmin",
    "QueueShareAdmin",
    "ScheduleAdmin",
    "TaskAdmin",
    "UsageAdmin",
    "WorkerAdmin",
]
