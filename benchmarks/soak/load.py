"""What is submitted: a minute of work, then a pause, again and again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

CYCLE = 60.0
BUSY = 40.0
USERS = 50
NAP = 0.02
LATER = timedelta(seconds=5)
KINDS = {"nothing": 88, "nap": 5, "fail": 3, "note": 2, "later": 1, "cancel": 1}


@dataclass(frozen=True)
class Portion:
    """What to submit now, and which of it to cancel at once."""

    tasks: list[dict[str, Any]]
    cancelled: list[str]


def is_busy(seconds: float) -> bool:
    """Return whether there is work at this moment of the soak."""
    return seconds % CYCLE < BUSY


def portions(rate: float, every: float, seed: int) -> Iterator[Portion]:
    """Yield for ever what is submitted every so many seconds, at a rate of tasks a second."""
    chance = random.Random(seed)
    number = 0
    while True:
        tasks, cancelled = [], []
        for _task in range(max(1, round(rate * every))):
            number += 1
            (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
            key = f"{kind}-{number}"
            tasks.append({"key": key, **task_of(kind, f"user-{chance.randrange(USERS)}")})
            if kind == "cancel":
                cancelled.append(key)
        yield Portion(tasks, cancelled)


def task_of(kind: str, user: str) -> dict[str, Any]:
    if kind == "nap":
        return {"type": "nap", "data": {"seconds": NAP}, "user": user}
    if kind in ("later", "cancel"):
        return {"type": "nothing", "data": {}, "user": user, "run_at": LATER}
    return {"type": kind, "data": {}, "user": user}
