from __future__ import annotations

from django_perfectqueue.queue import TaskHandle

from ..queues.rule_command import person
from ..tasks.single import SteeringCommand


class Command(SteeringCommand):
    summary = (
        "Submits copies of tasks, due at once, each with a new key: the same type, data, user,"
        " priority, limits and time limit."
    )
    signs = False

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        copy = task.copy(by=person())
        text = f"Task '{copy.key}' is a copy of '{task.key}'."
        return text, copy.key
