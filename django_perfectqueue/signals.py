"""
What a project may listen to.

Each is sent with the queue's name as ``queue`` and the task as ``task``, after the
change has been committed, and a receiver that raises disturbs nobody.
"""

from __future__ import annotations

from django.dispatch import Signal

task_started = Signal()
task_finished = Signal()
task_retried = Signal()
task_released = Signal()
task_failed = Signal()
task_cancelled = Signal()
