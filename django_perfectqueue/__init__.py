"""Database-backed background tasks for Django, shared fairly between users."""

__version__ = "0.1.0"
