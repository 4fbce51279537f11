"""What each user is entitled to, and which share each account carries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from django.db import transaction
from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue.models import EVERYONE, QueueShare

from ..database.transaction import Session, in_transaction, reading, retry_transaction, with_retries

SHARES = """
SELECT "queue", "user", "weight", "max_running", "paused"
FROM "perfectqueue_fairshare" WHERE "user" IN ({users})
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
    rows = QueueShare.objects.using(using).filter(queue__in=queues).values_list("queue", "weight")
    return with_retries(partial(dict, rows), using=using)


def places(queue: str, user: str) -> list[tuple[str, str]]:
    """Return where the share of a user in a queue may stand: the first goes before the rest."""
    return [(queue, user), ("", user), (queue, EVERYONE), ("", EVERYONE)]


# Which share each lane carries.


LANE = """
SELECT "id", "queue", "user", "weight", "max_running", "paused" FROM "perfectqueue_account"
WHERE "id" IN ({lanes}) ORDER BY "id"
"""
APPLY = """
UPDATE "perfectqueue_account"
SET "virtual_time" = CASE
        WHEN "virtual_time" < %(floor)s AND ("ready" = FALSE OR "max_running" IS NOT NULL)
        THEN %(floor)s ELSE "virtual_time"
    END,
    "weight" = %(weight)s, "max_running" = %(max_running)s, "paused" = %(paused)s
WHERE "id" IN ({lanes})
"""


def write(db: Session, lanes: Iterable[int], share: Share, floor: float | None) -> None:
    """Write a share to lanes; one that was shut goes on at the floor, where that is given."""
    values = {
        "floor": floor,
        "weight": share.weight,
        "max_running": share.max_running,
        "paused": share.paused,
    }
    db.execute(APPLY, values, lanes=lanes)


def outdated(db: Session, lanes: Iterable[int], lock: str = "") -> dict[int, tuple[str, Share]]:
    """Return the lanes that carry another share than they should, with their queue and that."""
    rows = db.rows(LANE + lock, lanes=lanes)
    shares = shares_of(db, {(row[1], row[2]) for row in rows}) if rows else {}
    return {
        lane: (queue, shares[queue, user])
        for lane, queue, user, weight, max_running, paused in rows
        if shares[queue, user] != Share(float(weight), max_running, bool(paused))
    }


def look_again(cursor: Cursor, lanes: Sequence[int]) -> None:
    """
    Once these lanes, which are new, are committed, see that they carry the right shares.

    When the share of everyone is edited, it does not reach lanes that nobody can see yet.
    """
    using = cursor.db.alias
    transaction.on_commit(partial(correct_shares, lanes, using=using), using=using, robust=True)


@retry_transaction
def correct_shares(
    lanes: Sequence[int], *, using: str, place: Callable[[Session, str], float] | None = None
) -> set[str]:
    """
    Write to accounts the shares that hold for them; return the queues of those that changed.

    They are locked in the order of their ids, as everyone does it. ``place`` is the
    virtual time of a queue at which a lane that was shut goes on.
    """
    with reading(using) as db:
        stale = outdated(db, lanes)
    if not stale:
        return set()
    groups: defaultdict[tuple[str, Share], list[int]] = defaultdict(list)
    with in_transaction(using) as db:
        for lane, group in outdated(db, stale, db.dialect.lock_clause).items():
            groups[group].append(lane)
        places = {queue: place and place(db, queue) for queue, _share in groups}
        for (queue, share), some in groups.items():
            write(db, some, share, places[queue])
    return set(places)
