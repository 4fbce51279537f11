"""What each user is entitled to, and which share each account carries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from django.db import transaction
from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue.models import EVERYONE, QueueShare

from ..database.dialects.base import Row
from ..database.transaction import Session, in_transaction, reading, retry_transaction, with_retries

S = TypeVar("S")


class Share(NamedTuple):
    """A user's weight, cap and pause; by default one of equals."""

    weight: float = 1.0
    max_running: int | None = None
    paused: bool = False

    @classmethod
    def of(cls, weight: float, max_running: int | None, paused: bool) -> Share:
        """Return a share by the columns of a row, as the driver gives them."""
        return cls(float(weight), max_running, bool(paused))


COLUMNS = ", ".join([f'"{name}"' for name in ("queue", "user", *Share._fields)])
SHARES = f'SELECT {COLUMNS} FROM "perfectqueue_fairshare" WHERE "user" IN ({{users}})'


def shares_of(db: Session, owners: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Share]:
    """Return the share of each (queue, user)."""
    owners = set(owners)
    users = sorted({user for _queue, user in owners} | {EVERYONE})
    return chosen(db.rows(SHARES, users=users), owners)


def chosen(rows: Iterable[Row], owners: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Share]:
    """
    Return the share of each (queue, user), by rows of SHARE, in which nulls are of a join that
    has found none.
    """
    found = {(queue, user): Share.of(*share) for queue, user, *share in rows if queue is not None}
    return {(queue, user): share_among(found, queue, user) or Share() for queue, user in owners}


def share_among(found: Mapping[tuple[str, str], S], queue: str, user: str) -> S | None:
    """Return the share that holds for a user in a queue, of those found: its own goes first."""
    places = [(queue, user), ("", user), (queue, EVERYONE), ("", EVERYONE)]
    return next((found[place] for place in places if place in found), None)


def queue_weights(queues: Sequence[str], *, using: str) -> dict[str, float]:
    """Return the weight of each of these queues that has a share of its own."""
    rows = QueueShare.objects.using(using).filter(queue__in=queues).values_list("queue", "weight")
    return with_retries(partial(dict, rows), using=using)


# Which share each lane carries.


LANE = f"""
SELECT "id", {COLUMNS} FROM "perfectqueue_account" WHERE "id" IN ({{lanes}}) ORDER BY "id"
"""
# One that was shut goes on at the floor, where that is given.
APPLY = f"""
UPDATE "perfectqueue_account"
SET "virtual_time" = CASE
        WHEN "virtual_time" < %(floor)s AND ("ready" = FALSE OR "max_running" IS NOT NULL)
        THEN %(floor)s ELSE "virtual_time"
    END, {", ".join([f'"{name}" = %({name})s' for name in Share._fields])}
WHERE "id" IN ({{lanes}})
"""


def outdated(db: Session, lanes: Iterable[int], lock: str = "") -> dict[int, tuple[str, Share]]:
    """Return the lanes that carry another share than they should, with their queue and that."""
    rows = db.rows(LANE + lock, lanes=lanes)
    shares = shares_of(db, {(row[1], row[2]) for row in rows}) if rows else {}
    return {
        lane: (queue, shares[queue, user])
        for lane, queue, user, *share in rows
        if shares[queue, user] != Share.of(*share)
    }


def look_again(cursor: Cursor, made: Mapping[int, tuple[str, str, Share]]) -> None:
    """
    Once new accounts are committed, see that the shares with which they were made still hold.

    An edit of a share does not reach accounts that nobody can see yet. So it is read again
    after the commit: an edit that commits later than that finds the account. Of two who make
    the same account only one has inserted it, and looks at the share that it carries.
    """
    using = cursor.db.alias
    if made:
        transaction.on_commit(partial(correct_made, made, using=using), using=using, robust=True)


@retry_transaction
def correct_made(made: Mapping[int, tuple[str, str, Share]], *, using: str) -> None:
    with reading(using) as db:
        shares = shares_of(db, {(queue, user) for queue, user, _share in made.values()})
    stale = [id_ for id_, (queue, user, share) in made.items() if shares[queue, user] != share]
    if stale:
        correct_shares(stale, using=using)


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
            db.execute(APPLY, {"floor": places[queue], **share._asdict()}, lanes=some)
    return set(places)
