"""The door for people: see every task, steer it, and say who is entitled to what."""

from .pages.batches import BatchAdmin
from .pages.limits import ChangeAdmin, LimitAdmin
from .pages.names import QueueAdmin, UserAdmin
from .pages.overview import OverviewAdmin
from .pages.schedules import ScheduleAdmin
from .pages.tasks import DeadLetterAdmin, TaskAdmin
from .pages.workers import WorkerAdmin

__all__ = [
    "BatchAdmin",
    "ChangeAdmin",
    "DeadLetterAdmin",
    "LimitAdmin",
    "OverviewAdmin",
    "QueueAdmin",
    "ScheduleAdmin",
    "TaskAdmin",
    "UserAdmin",
    "WorkerAdmin",
]
