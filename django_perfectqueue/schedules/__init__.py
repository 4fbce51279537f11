"""
Schedules: tasks that are submitted at each tick of a cron expression or of an interval.

They are rows; who fires them is in ``store.schedules``.
"""

from .declared import cron, every, scheduled
from .schedules import ScheduleHandle, Schedules
from .terms import Terms

__all__ = ["ScheduleHandle", "Schedules", "Terms", "cron", "every", "scheduled"]
