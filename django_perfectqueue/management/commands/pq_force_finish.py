from __future__ import annotations

from ..tasks.single import SteeringCommand


class Command(SteeringCommand):
    verb = "finish"
    summary = (
        "Closes tasks as finished, even while they run: the processor of such a task learns it by"
        " its next heartbeat, and can no longer write to it."
    )
