"""Which limits a task keeps to, and by them its lane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from django_perfectqueue.models import Limit

from .fair_order import lane_id

Keys = tuple[str, ...]

MOST_TRIED = 6


def key_of(scope: str, name: str) -> str:
    """Return what a limit is known by in gates and meters."""
    return f"{scope}:{name}"


def named(names: Iterable[str]) -> set[str]:
    """Return the keys of the limits that a task lists."""
    return {key_of(Limit.Scope.NAME, name) for name in names}


def scoped(queue: str, type_: str, user: str) -> set[str]:
    """Return the keys of the limits that hold for a task, if there are such, unlisted."""
    return {
        key_of(Limit.Scope.QUEUE, queue),
        key_of(Limit.Scope.TYPE, type_),
        *([key_of(Limit.Scope.USER, user)] if user else []),
    }


def may_hold(queue: str, type_: str, user: str, names: Iterable[str]) -> set[str]:
    """Return the keys of all limits that hold for a task, if there are such."""
    return named(names) | scoped(queue, type_, user)


def standing(
    lane: int, queue: str, type_: str, user: str, names: Iterable[str]
) -> tuple[str, Keys]:
    """
    Return in whose line a task stands, and behind which limits.

    Who submitted it may have known another policy than we do, and other limits; so what
    it was follows from the lane's own hash.
    """
    for listed in subsets(sorted(named(names))):
        for more in subsets(sorted(scoped(queue, type_, user))):
            keys = tuple(sorted(listed | more))
            for owner in (user, ""):
                if lane_id(queue, owner, keys) == lane:
                    return owner, keys
    return "", ()


def subsets(values: list[str]) -> Iterator[set[str]]:
    """Yield all subsets; of many values only those with all, none or one of them."""
    few = len(values) <= MOST_TRIED
    for size in range(len(values), -1, -1):
        if few or size in (len(values), 1, 0):
            yield from map(set, combinations(values, size))


def split(text: str) -> list[str]:
    """Return the names in a column that has them with commas between."""
    return text.split(",") if text else []
