"""Drain some of few or many that wait, and with many scheduled or finished beside few."""

from __future__ import annotations

from typing import Any

from benchmarks.environment import Environment

from .drain import drained

VARIANTS = ("waiting-few", "waiting-many", "scheduled-many", "finished-many")


def measure(environment: Environment, variant: str) -> dict[str, Any]:
    kind, _, amount = variant.partition("-")
    few, many = environment.scale.few, environment.scale.many
    environment.prepare(1)
    if kind == "waiting":
        environment.peer.stock("waiting", few if amount == "few" else many)
    else:
        environment.peer.stock("waiting", few)
        environment.peer.stock(kind, many)
    environment.checkpoint()
    environment.analyze()
    count = min(environment.size(environment.scale.tasks), few)
    return {**drained(environment, 1, count, leave=True), "few": few, "many": many}
