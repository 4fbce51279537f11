"""Which limits hold for whole queues, types and users, as far as this process has heard."""

from __future__ import annotations

import time

from ..models import Limit
from .keys import key_of
from .transaction import reading, repeated

FRESH = 1.0

SCOPED = """
SELECT "scope", "name" FROM "perfectqueue_limit" WHERE "scope" <> %(name)s
"""

heard: dict[str, tuple[float, frozenset[str]]] = {}


def known_limits(using: str) -> frozenset[str]:
    """
    Return the keys of the limits that tasks don't list; asked for anew once a second.

    It spares a task that is submitted a move to another lane, which it otherwise gets when
    it is acquired. So what has been missed does no harm.
    """
    asked_at, keys = heard.get(using, (float("-inf"), frozenset()))
    if time.monotonic() - asked_at < FRESH:
        return keys
    keys = scoped_limits(using=using)
    heard[using] = (time.monotonic(), keys)
    return keys


@repeated
def scoped_limits(*, using: str) -> frozenset[str]:
    with reading(using) as (cursor, dialect):
        rows = dialect.execute(cursor, SCOPED, {"name": Limit.Scope.NAME.value}).fetchall()
    return frozenset(key_of(scope, name) for scope, name in rows)


def forget_limits(using: str) -> None:
    """Ask for them anew the next time."""
    heard.pop(using, None)
