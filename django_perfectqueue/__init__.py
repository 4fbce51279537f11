"""Database-backed background tasks for Django, shared fairly between users."""

from .current import current_task, log, progress
from .version import __version__

__all__ = ["__version__", "current_task", "log", "progress"]
