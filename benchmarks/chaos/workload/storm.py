"""What the clients of a storm submit, and the caps, rates and pauses that hold meanwhile."""

from __future__ import annotations

import random
from typing import Any

from ..scenario import COUNTED, QUICK, SHAKY, Rate

SHARED, APART, SCRAP = "shared", "apart", "scrap"
"""Workers take from the first queue, clients from all; SCRAP is cleared now and then."""
QUEUES = (SHARED, APART, SCRAP)
BULK = "bulk"
"""Only the worker takes from this queue: its tasks change others."""

CAPPED, VARIED, HALTED_USER = "capped", "varied", "halted"
WEIGHTS = {"ann": 1.0, "bob": 3.0, CAPPED: 1.0, VARIED: 2.0, HALTED_USER: 1.0}
HERD = "herd"
"""The user whose tasks bulk work retries, edits and cancels."""
USERS = (*WEIGHTS, HERD, "")
MOST_RUNNING = {CAPPED: 3, VARIED: 5}
"""The most that may run at once in each queue; that of VARIED is now this and now less."""
SHARES = {user: (weight, MOST_RUNNING.get(user)) for user, weight in WEIGHTS.items()}

NARROW, METERED, HALTED, LOOSE = "narrow", "metered", "halted", "loose"
TYPES = (QUICK, SHAKY, COUNTED)
LIMITS = {f"name:{NARROW}": 2, f"type:{COUNTED}": 4}
FAMILY, EACH = {"name:each:*": 2}, [f"each:{number}" for number in range(4)]
CAPS = LIMITS | {
    f"user:{user} in {queue}": cap for user, cap in MOST_RUNNING.items() for queue in QUEUES
}
CAPS |= {f"name:{name}": cap for cap in FAMILY.values() for name in EACH}
RATES = {f"name:{METERED}": Rate(rate=6, period=1.0, burst=4)}
TERMS = {key: {"max_running": cap} for key, cap in (LIMITS | FAMILY).items()} | {
    key: vars(rate) for key, rate in RATES.items()
}
# Of a family the terms are set once, and hold for each name.
FLOW, FLOWS = Rate(rate=6, period=1.0, burst=4), [f"flow:{number}" for number in range(3)]
TERMS["name:flow:*"] = vars(FLOW)
RATES |= {f"name:{name}": FLOW for name in FLOWS}
PAUSES = (f"user:{HALTED_USER}", f"name:{HALTED}")


def drawn_task(drawn: random.Random, life: str, alive_time: float) -> dict[str, Any]:
    """Return a new task; ``life`` names this submission of its key."""
    queue = drawn.choices(QUEUES, (60, 35, 5))[0]
    return {
        "life": life,
        "queue": queue,
        "key": f"{queue}-{life}",
        "type": drawn.choices(TYPES, (6, 2, 2))[0],
        "user": drawn.choice(USERS),
        "limits": drawn_limits(drawn),
        "priority": drawn.choice((0, 0, 0, 5, -5)),
        "after": [],
        "batch": "",
        "delay": round(drawn.uniform(0.05, 2.0), 3) if drawn.random() < 0.15 else None,
        "expires": round(alive_time * drawn.uniform(1.0, 3.0), 3) if drawn.random() < 0.1 else None,
    }


def drawn_limits(drawn: random.Random) -> list[str]:
    return [
        name
        for name, often in (
            *((NARROW, 0.1), (METERED, 0.1), (HALTED, 0.05), (LOOSE, 0.1)),
            (drawn.choice(EACH), 0.1),
            (drawn.choice(FLOWS), 0.1),
        )
        if drawn.random() < often
    ]
