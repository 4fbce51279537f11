"""Run one attempt of a task and settle the task."""
