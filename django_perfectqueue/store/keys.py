"""Which limits a task keeps to, and by them its lane."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import combinations

from ..models import Limit
from .lanes import lane_id

Keys = tuple[str, ...]


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


def keys_of(
    queue: str, type_: str, user: str, names: Iterable[str], known: Collection[str]
) -> Keys:
    """Return the keys of all limits that hold for a task, in order, where these are known."""
    return tuple(sorted(named(names) | scoped(queue, type_, user).intersection(known)))


def keys_behind(lane: int, queue: str, type_: str, user: str, names: Iterable[str]) -> Keys:
    """
    Return the keys by which a task's lane was named.

    Which of those that it does not list were known then is told by the lane's own hash.
    """
    listed = named(names)
    for more in subsets(sorted(scoped(queue, type_, user))):
        keys = tuple(sorted(listed | more))
        if lane_id(queue, user, keys) == lane:
            return keys
    return tuple(sorted(listed))


def subsets(values: list[str]) -> Iterator[set[str]]:
    for size in range(len(values) + 1):
        yield from map(set, combinations(values, size))


def split(text: str) -> list[str]:
    """Return the names in a column that has them with commas between."""
    return text.split(",") if text else []
