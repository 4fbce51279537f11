"""
What of its submitter's surroundings a task takes along, and what is not for all eyes.

The setting CONTEXT names it: context variables, and providers such as those below.
"""

from __future__ import annotations

import functools
import json
import logging
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from django.utils import timezone as zones
from django.utils import translation

from django_perfectqueue import tracing
from django_perfectqueue.conf import SETTING, cached, options
from django_perfectqueue.exceptions import ConfigError, InvalidTaskError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.imports import imported

from .codecs import JSON

logger = logging.getLogger("django_perfectqueue.context")

# How long the context of a task may be, in bytes as JSON.
LONGEST = 8_192


# What it has of a task that a schedule has submitted: the name of that, and the tick.
OF_SCHEDULES = ("schedule", "scheduled_for")

# What a submit may say of the attempts of its task, which only those that end in an error read.
OF_ATTEMPTS = ("max_attempts", "backoff")

# The last is of a key of which one task is to live: a retry reads it.
NO_PROVIDERS = {tracing.PARENT, tracing.STATE, *OF_SCHEDULES, *OF_ATTEMPTS, "unique"}


class Provider(NamedTuple):
    """
    Two functions: what ``capture`` returns at a submit, ``restore`` is given at each attempt.

    It is a value that JSON can hold; None is not taken along. ``restore`` is called before
    each handler, with None where the task has no value. It may return a context manager, which
    is entered before the handler and left after it, also after an error or an interrupt. What it
    sets in context variables is gone with the context of the task. If it raises, the handler
    does not run, and the attempt ends in that error.
    """

    capture: Callable[[], object]
    restore: Callable[[JSON], object]


class InContext(Provider):
    """One that sets context variables only, and so needs no thread in which it may block."""


def zone_name() -> str | None:
    """Return the name of the time zone that is active, where it has one."""
    zone = zones.get_current_timezone()
    return zone.key if isinstance(zone, zoneinfo.ZoneInfo) else None


def set_or_reset(set_to: Callable[[JSON], object], reset: Callable[[], object], to: JSON) -> None:
    """Set what is taken along; reset it to what it is without a submitter."""
    reset() if to is None else set_to(to)


# The language that is active.
language = InContext(
    translation.get_language,
    functools.partial(set_or_reset, translation.activate, translation.deactivate),
)

# The time zone that is active, if it is one of the IANA database.
timezone = InContext(zone_name, functools.partial(set_or_reset, zones.activate, zones.deactivate))


def of_variable(variable: ContextVar[JSON]) -> Provider:
    """Return the provider of a context variable; without a value it has its default again."""

    def reset() -> None:
        if variable in copy_context():
            try:
                variable.set(Context().run(variable.get))
            except LookupError:
                variable.set(None)

    return InContext(
        functools.partial(variable.get, None), functools.partial(set_or_reset, variable.set, reset)
    )


@cached
def providers() -> dict[str, Provider]:
    """
    Return what CONTEXT names, by its dotted path.

    Raise ConfigError when an entry is no provider.
    """
    return {path: provider_at(path) for path in options().CONTEXT}


def provider_at(path: str) -> Provider:
    found = imported(path, f"{SETTING}['CONTEXT']")
    if isinstance(found, ContextVar):
        return of_variable(found)
    if isinstance(found, InContext):
        return found
    pair = tuple(found) if isinstance(found, tuple | list) else ()
    if len(pair) == 2 and all(map(callable, pair)):
        return Provider(*pair)
    raise ConfigError(
        f"'{path}' in {SETTING}['CONTEXT'] is no ContextVar and no pair of functions, such as"
        " Provider(capture, restore)."
    )


def may_block() -> bool:
    """Return whether a provider may use the database, as far as is known."""
    return not all(isinstance(provider, InContext) for provider in providers().values())


def captured(given: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return what a task that is submitted here takes along, by name."""
    found = tracing.captured()
    return found if given is None and not providers() else found | provided(given)


def provided(given: Mapping[str, object] | None = None) -> dict[str, object]:
    """
    Return what providers capture here, by their paths, or what is given in place of that.

    Raise InvalidTaskError where a path that is given is not in CONTEXT; names of traces,
    schedules and attempts are left out, so that the context of another task may be given.
    """
    known = providers()
    if given is None:
        given = {path: provider.capture() for path, provider in known.items()}
    for path in given.keys() - known.keys() - NO_PROVIDERS:
        raise InvalidTaskError(f"{SETTING}['CONTEXT'] has no '{path}'.{nearest(path, known)}")
    return {path: given[path] for path in known if given.get(path) is not None}


@contextmanager
def restored(values: Mapping[str, JSON]) -> Iterator[None]:
    """
    Set in this context what a task has taken along, and None where it has nothing.

    What this process has no provider for is left out: another release may have sent it.
    """
    tracing.restore(values)
    with restored_by_providers(values):
        yield


@contextmanager
def restored_by_providers(values: Mapping[str, JSON]) -> Iterator[None]:
    """Do the same without the trace, which a worker restores before it makes the handler."""
    known = providers()
    for name in values.keys() - known.keys() - NO_PROVIDERS:
        logger.debug("No provider restores this value of a task's context. name=%s", name)
    with ExitStack() as stack:
        for path, provider in known.items():
            inside = provider.restore(values.get(path))
            if isinstance(inside, AbstractContextManager):
                stack.enter_context(inside)
        yield


# What is not for all eyes in the data of a task, by its name: the setting SENSITIVE.


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
