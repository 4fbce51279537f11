"""Database-backed background tasks for Django, shared fairly between users."""

from . import interrupts
from .current import current_task, log, progress
from .version import __version__

interrupts.leave_to_system()

__all__ = ["__version__", "current_task", "log", "progress"]
