"""What code here says of a schedule that is found elsewhere."""

from __future__ import annotations

from django_perfectqueue import compat
from django_perfectqueue.schedules import Terms
from django_perfectqueue.schedules.declared import declarations, terms_of


def terms_of_type(type_: str) -> Terms:
    """Return what ``@task`` says of the submit of a type; nothing for other handlers."""
    if not compat.HAS_TASKS:
        return {}
    from django_perfectqueue.backend.registry import definitions

    return terms_of(definitions.get(type_))


def is_declared(type_: str, data: object) -> bool:
    """Return whether ``@scheduled`` submits this type with these data."""
    same_type = (one.payload for one in declarations.values() if one.type == type_)
    return any(in_full(payload) == in_full(data) for payload in same_type)


def in_full(data: object) -> object:
    """Return the data of a call with both of its parts, other data as they are."""
    if isinstance(data, dict) and data.keys() <= {"args", "kwargs"}:
        return {"args": [], "kwargs": {}, **data}
    return data
