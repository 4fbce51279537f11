"""Database-backed background tasks for Django, shared fairly between users."""

from .current import current_task, log, progress

__version__ = "0.1.0"
__all__ = ["current_task", "log", "progress"]
