"""What is submitted: mostly tasks that do nothing, and a few of every other kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

USERS = 50
NAP = 0.02
LATER = timedelta(seconds=5)
KINDS = {"nothing": 990, "nap": 2, "fail": 3, "note": 2, "later": 2, "cancel": 1}
NOTED = ("nothing", "nap", "note")
"""Those that the probe hears of, once each."""


@dataclass(frozen=True)
class Portion:
    """What to submit now, which of it to cancel at once, and of how many the probe will hear."""

    tasks: list[dict[str, Any]]
    cancelled: list[str]
    noted: int


def portions(size: int, seed: int) -> Iterator[Portion]:
    """Yield for ever so many tasks."""
    chance = random.Random(seed)
    number = 0
    while True:
        kinds = chance.choices(list(KINDS), list(KINDS.values()), k=size)
        named = [(kind, index) for index, kind in enumerate(kinds, start=number)]
        number += size
        yield Portion(
            [task_of(kind, index, f"user-{chance.randrange(USERS)}") for kind, index in named],
            [f"{kind}-{index}" for kind, index in named if kind == "cancel"],
            sum(kind in NOTED for kind in kinds),
        )


def task_of(kind: str, index: int, user: str) -> dict[str, Any]:
    task = {"key": f"{kind}-{index}", "type": kind, "data": {"i": index}, "user": user}
    if kind == "nap":
        task["data"] = {"i": index, "seconds": NAP}
    if kind in ("later", "cancel"):
        task |= {"type": "later", "run_at": LATER}
    return task
