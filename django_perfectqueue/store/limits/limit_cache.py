"""Which limits there are, as far as this process has heard."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ..arithmetic.fair_order import lane_of
from ..arithmetic.limit_keys import key_of, may_hold
from ..database.transaction import reading, retry_transaction
from .meters import limits

FRESH = 1.0
FRESH_WITHOUT = 30.0
"""In seconds, where there are no limits: until then a task may be moved when it is acquired."""
MOST = 1_000
MOST_ASKED = 10_000

FIRST = 'SELECT "scope", "name" FROM "perfectqueue_limit" LIMIT %(limit)s'


@dataclass(slots=True)
class Heard:
    """
    What holds ``until`` a time: the keys of all limits, or where there are more than MOST of
    them, of each key that was asked for whether there is such a limit.
    """

    until: float
    keys: frozenset[str]
    all: bool
    asked: dict[str, bool] = field(default_factory=dict)


heard: dict[str, Heard] = {}


def lane_behind(queue: str, type_: str, user: str, names: Iterable[str], *, using: str) -> int:
    """Return the lane of a task's user, behind all limits known to hold for the task."""
    return lane_of(queue, user, limits_of(queue, type_, user, names, using=using))


def limits_of(
    queue: str, type_: str, user: str, names: Iterable[str], *, using: str
) -> tuple[str, ...]:
    """Return the keys of the limits that exist for a task, sorted, as known_limits() has heard."""
    known = heard.get(using)
    if known and known.all and not known.keys and time.monotonic() < known.until:
        return ()
    return tuple(sorted(known_limits(may_hold(queue, type_, user, names), using=using)))


def known_limits(keys: Collection[str], *, using: str) -> set[str]:
    """
    Return which of these limits exist; it is asked for anew once a second, and where there are
    none, each half minute.

    It spares a task that is submitted a move to another lane, which it otherwise gets when
    it is acquired. So what has been missed does no harm.
    """
    known = heard.get(using)
    if known is None or time.monotonic() >= known.until:
        known = heard[using] = first_limits(using=using)
    if known.all:
        return set(known.keys.intersection(keys))
    if unknown := [key for key in keys if key not in known.asked]:
        if len(known.asked) > MOST_ASKED:
            known.asked.clear()
        found = existing(unknown, using=using)
        known.asked.update((key, key in found) for key in unknown)
    return {key for key in keys if known.asked.get(key)}


@retry_transaction
def first_limits(*, using: str) -> Heard:
    with reading(using) as db:
        rows = db.rows(FIRST, {"limit": MOST + 1})
    keys = frozenset(key_of(scope, name) for scope, name in rows)
    until = time.monotonic() + (FRESH if keys else FRESH_WITHOUT)
    return Heard(until, keys, all=len(rows) <= MOST)


@retry_transaction
def existing(keys: Collection[str], *, using: str) -> set[str]:
    with reading(using) as db:
        return set(limits(db, keys))


def forget_limits(using: str) -> None:
    """Ask for them anew the next time."""
    heard.pop(using, None)
