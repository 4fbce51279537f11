"""Database-backed background tasks for Django, shared fairly between users."""

from .current import current_task, log, progress, step
from .lib import early_signals
from .lib.version import __version__

early_signals.leave_to_system()

__all__ = ["__version__", "current_task", "log", "progress", "step"]
