"""What each user is entitled to, as the lanes carry it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .dialects import Dialect
from .lanes import lane_id
from .transaction import repeated, unit

SHARES = """
SELECT "queue", "user", "weight", "max_running", "paused"
FROM "perfectqueue_fairshare" WHERE "user" IN ({users})
"""
QUEUES = 'SELECT DISTINCT "queue" FROM "perfectqueue_lane"'
APPLY = """
UPDATE "perfectqueue_lane"
SET "weight" = %(weight)s, "max_running" = %(max_running)s, "paused" = %(paused)s
WHERE "id" = %(lane)s
"""


@dataclass(frozen=True, slots=True)
class Share:
    """A user's weight, cap and pause; by default one of equals."""

    weight: float = 1.0
    max_running: int | None = None
    paused: bool = False


def shares_of(
    cursor: Any, dialect: Dialect, owners: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], Share]:
    """Return the share of each (queue, user): its own, or else the user's, or else the default."""
    owners = set(owners)
    users = sorted({user for _queue, user in owners})
    names = {f"user{number}": user for number, user in enumerate(users)}
    statement = SHARES.replace("{users}", ", ".join(f"%({name})s" for name in names) or "NULL")
    found = {
        (queue, user): Share(float(weight), max_running, bool(paused))
        for queue, user, weight, max_running, paused in dialect.execute(
            cursor, statement, names
        ).fetchall()
    }
    return {
        (queue, user): found.get((queue, user)) or found.get(("", user)) or Share()
        for queue, user in owners
    }


@repeated
def apply_shares(user: str, *, using: str) -> None:
    """Write a user's shares to its lanes, so that they hold for tasks that wait already."""
    with unit(using) as (cursor, dialect):
        queues = [queue for (queue,) in dialect.execute(cursor, QUEUES).fetchall()]
        shares = shares_of(cursor, dialect, {(queue, user) for queue in queues})
        for lane, share in sorted(
            (lane_id(queue, user), share) for (queue, _user), share in shares.items()
        ):
            dialect.execute(
                cursor,
                APPLY,
                {
                    "lane": lane,
                    "weight": share.weight,
                    "max_running": share.max_running,
                    "paused": share.paused,
                },
            )
