"""What is not for all eyes in the data of a task, by its name: the setting SENSITIVE."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from .conf import options

STARS = "********"
SHORTEST = 4
CONTAINERS = (dict, list, tuple, Mapping)


def is_sensitive(name: Any) -> bool:
    """Tell whether a name has one of the words of SENSITIVE in it."""
    return has_word(str(name), tuple(options().SENSITIVE))


@functools.lru_cache(maxsize=10_000)
def has_word(name: str, words: tuple[str, ...]) -> bool:
    plain = name.lower().replace("-", "_").replace(" ", "_")
    return any(word in plain for word in words)


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
    return without(text, secrets_of(value))


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text with stars for what secrets_of() has found."""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, STARS)
    return text


def secrets_of(value: Any) -> tuple[str, ...]:
    """Return what is sensitive of a value, as it may stand in a text, the longest first."""
    secrets = secrets_in(value)
    if not secrets:
        return ()
    found = {spelling for secret in secrets for spelling in spellings(secret)}
    return tuple(sorted(found, key=len, reverse=True))


def secrets_in(value: Any) -> set[str]:
    """Return what is sensitive, as text; what is very short would hide what is not."""
    found: set[str] = set()
    gather(value, found, named=False)
    return found


def gather(value: Any, found: set[str], *, named: bool) -> None:
    if isinstance(value, dict | Mapping):
        for name, inner in value.items():
            if (secret := named or is_sensitive(name)) or isinstance(inner, CONTAINERS):
                gather(inner, found, named=secret)
    elif isinstance(value, list | tuple):
        for inner in value:
            if named or isinstance(inner, CONTAINERS):
                gather(inner, found, named=named)
    elif named and not isinstance(value, bool | None) and len(str(value)) >= SHORTEST:
        found.add(str(value))


def spellings(secret: str) -> Iterator[str]:
    """Yield a text as it is, and as it stands in Python, in JSON and in a URL."""
    yield secret
    if secret.isalnum() and secret.isascii():
        return
    yield repr(secret)[1:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    for quoted in (quote, quote_plus):
        yield quoted(secret, errors="replace")
        yield quoted(secret, safe="", errors="replace")
