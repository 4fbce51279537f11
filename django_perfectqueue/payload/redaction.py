"""What is not for all eyes in the data of a task, by its name: the setting SENSITIVE."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

from django_perfectqueue.conf import options

from .names import JSON

STARS = "********"
SHORTEST = 4
CONTAINERS = (dict, list, tuple, Mapping)


def is_sensitive(name: object) -> bool:
    """Return whether a name contains a word of SENSITIVE."""
    return has_word(str(name), tuple(options().SENSITIVE))


@functools.lru_cache(maxsize=10_000)
def has_word(name: str, words: tuple[str, ...]) -> bool:
    plain = name.lower().replace("-", "_").replace(" ", "_")
    return any(word in plain for word in words)


def masked(value: JSON) -> JSON:
    """
    Return a value as JSON holds it, with stars for what is sensitive.

    Without recursion, as in secrets_in().
    """
    result: list[JSON] = [None]
    rest: list[tuple[JSON, JSON, object]] = [(value, result, 0)]
    while rest:
        outer, into, place = rest.pop()
        into[place] = outer
        if isinstance(outer, Mapping):
            into[place] = {}
            for name, inner in outer.items():
                hide = inner is not None and is_sensitive(name)
                rest.append((STARS if hide else inner, into[place], name))
            # Taken from the end, but kept in the order in which they were given.
            into[place].update(dict.fromkeys(outer))
        elif isinstance(outer, list | tuple):
            into[place] = [None] * len(outer)
            rest += [(inner, into[place], number) for number, inner in enumerate(outer)]
    return result[0]


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text with stars for what secrets_of() has found."""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, STARS)
    return text


def secrets_of(value: object) -> tuple[str, ...]:
    """Return what is sensitive of a value, as it may stand in a text, the longest first."""
    secrets = secrets_in(value)
    if not secrets:
        return ()
    found = {spelling for secret in secrets for spelling in spellings(secret)}
    return tuple(sorted(found, key=len, reverse=True))


def secrets_in(value: object) -> set[str]:
    """
    Return what is sensitive, as text; what is very short would hide what is not.

    Without recursion: JSON reads and writes what is nested deeper than functions may be.
    """
    found: set[str] = set()
    rest = [(value, False)]
    while rest:
        outer, named = rest.pop()
        if isinstance(outer, dict | Mapping):
            for name, inner in outer.items():
                if (secret := named or is_sensitive(name)) or isinstance(inner, CONTAINERS):
                    rest.append((inner, secret))
        elif isinstance(outer, list | tuple):
            for inner in outer:
                if named or isinstance(inner, CONTAINERS):
                    rest.append((inner, named))
        elif named and not isinstance(outer, bool | None) and len(str(outer)) >= SHORTEST:
            found.add(str(outer))
    return found


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
