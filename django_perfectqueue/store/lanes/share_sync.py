"""Which share each lane carries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from django.db import transaction
from django.db.backends.utils import CursorWrapper as Cursor

from ..database.session import Session
from ..database.transaction import in_transaction, reading, retry_transaction
from .shares import Share, shares_of

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


def correct(
    db: Session, lanes: Iterable[int], place: Callable[[str], float | None] = lambda queue: None
) -> set[str]:
    """
    Write to accounts the shares that hold for them; return the queues of those that changed.

    They are locked in the order of their ids, as everyone does it. ``place`` is the
    virtual time of a queue at which a lane that was shut goes on.
    """
    groups: defaultdict[tuple[str, Share], list[int]] = defaultdict(list)
    for lane, group in outdated(db, lanes, db.dialect.lock_clause).items():
        groups[group].append(lane)
    places = {queue: place(queue) for queue, _share in groups}
    for (queue, share), some in groups.items():
        write(db, some, share, places[queue])
    return set(places)


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
def correct_shares(lanes: Sequence[int], *, using: str) -> None:
    with reading(using) as db:
        stale = outdated(db, lanes)
    if stale:
        with in_transaction(using) as db:
            correct(db, stale)
