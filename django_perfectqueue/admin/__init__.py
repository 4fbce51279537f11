"""The door for people: see every task, steer it, and say who is entitled to what."""

from .pages import batches, limits, names, overview, schedules, tasks, workers

__all__ = ["batches", "limits", "names", "overview", "schedules", "tasks", "workers"]
