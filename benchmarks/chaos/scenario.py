"""What is submitted: thousands of tasks of mixed length, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

WEBS, POND, PLAYS = "webs", "pond", "plays"
"""
The queues of what is changed: graphs in batches, tasks that only bulk work changes, and what
clients submit.
"""
BULK = "perfectqueue.bulk"

CAPPED, CAP = "capped", 2
NARROW, WIDTH = "narrow", 2
SHARES = {"ann": (1.0, None), "bob": (2.0, None), "carl": (4.0, None), CAPPED: (2.0, CAP)}
USERS = (*SHARES, None)
SWIFT, BURST = "swift", 1_500
"""A user with nothing to wait for, and how many tasks it submits at once."""

WORKFLOW, CHILD, MERGED, ONCE = "workflow", "child", "merged", "once"
SIGNALS, CHILDREN, STEPS = ("a", "b"), 3, 5
FAMILIES, EACH = [f"family-{number}" for number in range(3)], 2
"""The limits ``each:family-0`` and so on are one family: so many tasks of each may run."""

QUICK, SHAKY, COUNTED = "quick", "shaky", "counted"
"""The types of the tasks that clients settle, too."""


@dataclass(frozen=True)
class Rate:
    """So many starts in each period of seconds, and so many at once."""

    rate: int
    period: float
    burst: int

    def most_in(self, seconds: float) -> float:
        return self.burst + self.rate * seconds / self.period


SCHEDULES = {f"tick{number}": number % 60 + 1 for number in range(200)}
"""How many seconds apart the ticks of each schedule are."""

FINISHED, ANY = frozenset({"finished"}), frozenset({"finished", "failed", "cancelled", "expired"})
ENDINGS = {
    **dict.fromkeys((QUICK, SHAKY, COUNTED), ANY),
    "hopeless": frozenset({"failed"}),
    "cancelled": frozenset({"finished", "cancelled"}),
    "strand": ANY,
    BULK: frozenset({"finished", "cancelled"}),
}


@dataclass(frozen=True)
class Kind:
    """How often a type comes, and how long it takes at least and at most, in seconds."""

    type: str
    often: float
    least: float
    most: float


def kinds(alive_time: float) -> list[Kind]:
    """Return the types; some take longer than a lease."""
    return [
        Kind("steady", 60.0, 0.0, 0.02),
        Kind("steady", 15.0, 0.02, 0.2),
        Kind("steady", 4.0, 0.2, 2.0),
        Kind("long", 0.4, alive_time, alive_time * 1.5),
        Kind("cancelled", 0.6, alive_time / 2, alive_time),
        Kind("flaky", 6.0, 0.0, 0.02),
        Kind("hopeless", 1.0, 0.0, 0.01),
        Kind("stubborn", 0.8, 0.5, 2.0),
        Kind("attentive", 0.8, 0.5, 2.0),
        Kind("settler", 6.0, 0.0, 0.1),
        Kind("parent", 5.0, 0.0, 0.0),
    ]


def tasks(seed: int, alive_time: float) -> Iterator[dict[str, Any]]:
    """Yield one task after another, as ``Queue.submit_many`` takes them."""
    drawn = random.Random(seed)
    known = kinds(alive_time)
    weights = [kind.often for kind in known]
    number = 0
    while True:
        number += 1
        [kind] = drawn.choices(known, weights)
        yield {
            "key": f"{kind.type}-{number}",
            "type": kind.type,
            "data": data_for(kind, drawn),
            "user": drawn.choice(USERS),
            "priority": drawn.choice((0, 0, 0, 5, -5)),
            "limits": [NARROW] if drawn.random() < 0.08 else drawn_family(drawn),
            "run_at": drawn.uniform(0.1, 3.0) if drawn.random() < 0.05 else None,
        }


def drawn_family(drawn: random.Random) -> list[str]:
    return [f"each:{drawn.choice(FAMILIES)}"] if drawn.random() < 0.08 else []


def burst(number: int) -> list[dict[str, Any]]:
    """Return tasks so short that processors acquire the next of them while some run."""
    return [
        {"key": f"burst-{number}-{one}", "type": "steady", "data": {"seconds": 0.0}, "user": SWIFT}
        for one in range(BURST)
    ]


def data_for(kind: Kind, drawn: random.Random) -> dict[str, Any]:
    data: dict[str, Any] = {"seconds": round(drawn.uniform(kind.least, kind.most), 4)}
    if kind.type == "flaky":
        data["errors"] = drawn.randint(1, 3)
    if kind.type == "settler":
        data["first"] = drawn.choice(("", "release", "retry"))
    if kind.type == "parent":
        data["rolls_back"] = drawn.random() < 0.3
    return data


def endings(type: str) -> frozenset[str]:
    """Return the outcomes that a task of this type may have."""
    return ENDINGS.get(type, FINISHED)


def errors(type: str, data: dict[str, Any]) -> int | None:
    """Return in how many errors a task of this type ends before it is over, if that is sure."""
    if type == "hopeless":
        return 2
    if type in ("flaky", WORKFLOW):
        return int(data["errors"])
    if type in ("steady", "long", "cancelled", "stubborn", "attentive", CHILD, MERGED, ONCE):
        return 0
    if type == "settler":
        return int(data["first"] == "retry")
    return None
