from __future__ import annotations

from ..tasks.single import SteeringCommand


class Command(SteeringCommand):
    verb = "copy"
    summary = (
        "Submits copies of tasks, due at once, each with a new key: the same type, data, user,"
        " priority, limits and time limit."
    )
