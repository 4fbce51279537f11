"""What each user is entitled to, as the lanes carry it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django_perfectqueue.models import EVERYONE

from ..database.session import Session
from ..database.transaction import reading

SHARES = """
SELECT "queue", "user", "weight", "max_running", "paused"
FROM "perfectqueue_fairshare" WHERE "user" IN ({users})
"""
QUEUE_WEIGHTS = """
SELECT "queue", "weight" FROM "perfectqueue_queueshare" WHERE "queue" IN ({queues})
"""


@dataclass(frozen=True, slots=True)
class Share:
    """A user's weight, cap and pause; by default one of equals."""

    weight: float = 1.0
    max_running: int | None = None
    paused: bool = False


def shares_of(db: Session, owners: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Share]:
    """Return the share of each (queue, user): the first row there is of those in places()."""
    owners = set(owners)
    users = sorted({user for _queue, user in owners} | {EVERYONE})
    found = {
        (queue, user): Share(float(weight), max_running, bool(paused))
        for queue, user, weight, max_running, paused in db.rows(SHARES, users=users)
    }
    return {
        (queue, user): next(
            (found[place] for place in places(queue, user) if place in found), Share()
        )
        for queue, user in owners
    }


def queue_weights(queues: Sequence[str], *, using: str) -> dict[str, float]:
    """Return the weight of each of these queues that has a share of its own."""
    with reading(using) as db:
        rows = db.rows(QUEUE_WEIGHTS, queues=queues)
    return {queue: float(weight) for queue, weight in rows}


def places(queue: str, user: str) -> list[tuple[str, str]]:
    """Return where the share of a user in a queue may stand: the first goes before the rest."""
    return [(queue, user), ("", user), (queue, EVERYONE), ("", EVERYONE)]
