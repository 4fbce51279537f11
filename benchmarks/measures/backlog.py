"""Drain some of few or many that wait, and with many scheduled or finished beside few."""

from __future__ import annotations

from typing import Any

from benchmarks.stand import Stand

from .drain import drained

VARIANTS = ("waiting-few", "waiting-many", "scheduled-many", "finished-many")


def measure(stand: Stand, variant: str) -> dict[str, Any]:
    kind, _, amount = variant.partition("-")
    few, many = stand.scale.few, stand.scale.many
    stand.prepare(1)
    if kind == "waiting":
        stand.peer.stock("waiting", few if amount == "few" else many)
    else:
        stand.peer.stock("waiting", few)
        stand.peer.stock(kind, many)
    stand.checkpoint()
    stand.analyze()
    count = min(stand.size(stand.scale.tasks), few)
    return {**drained(stand, 1, count, leave=True), "few": few, "many": many}
