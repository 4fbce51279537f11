"""What is not for all eyes in the data of a task, by its name: the setting SENSITIVE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .conf import options

STARS = "********"
SHORTEST = 4


def is_sensitive(name: Any) -> bool:
    """Tell whether a name has one of the words of SENSITIVE in it."""
    plain = str(name).lower().replace("-", "_").replace(" ", "_")
    return any(word in plain for word in options().SENSITIVE)


def masked(value: Any) -> Any:
    """Return a value as JSON holds it, with stars for what is sensitive."""
    if isinstance(value, Mapping):
        return {
            name: STARS if is_sensitive(name) and inner is not None else masked(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(inner) for inner in value]
    return value


def redacted(text: str, value: Any) -> str:
    """Return a text with stars wherever something sensitive of a value stands in it."""
    for secret in sorted(set(secrets_in(value)), key=len, reverse=True):
        text = text.replace(secret, STARS)
    return text


def secrets_in(value: Any, *, named: bool = False) -> Iterator[str]:
    """Yield what is sensitive, as text; what is very short would hide what is not."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from secrets_in(inner, named=named or is_sensitive(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from secrets_in(inner, named=named)
    elif named and value is not None and len(str(value)) >= SHORTEST:
        yield str(value)
