from __future__ import annotations

from django_perfectqueue.queue import TaskHandle

from ..tasks.single import SteeringCommand


class Command(SteeringCommand):
    summary = (
        "Closes tasks as finished, even while they run: the processor of such a task learns it by"
        " its next heartbeat, and can no longer write to it."
    )

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        task.force_finish()
        return f"Task '{task.key}' is finished.", "finished"
