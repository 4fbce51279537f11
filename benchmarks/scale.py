"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """
    ``tasks`` is what a peer of size 1 drains with one process. ``cap`` is how many
    seconds a drain may take: what is not done then is left, and that is said.
    """

    tasks: int = 5_000
    bulk: int = 10_000
    submits: int = 2_000
    latencies: int = 200
    idle: float = 5.0
    few: int = 10_000
    many: int = 1_000_000
    cap: float = 60.0


SHORT = Scale(
    tasks=600, bulk=2_000, submits=300, latencies=40, idle=1.0, few=1_000, many=20_000, cap=10.0
)
