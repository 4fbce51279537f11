"""What a program gives along, checked and in the form in which it is stored; merge patches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Literal
from uuid import uuid4

from django.utils import timezone
from django.utils.functional import Promise

from django_perfectqueue import backoff
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import ConfigError, InvalidTaskError
from django_perfectqueue.lib.checks import LARGEST, Check, choice, named, span, whole
from django_perfectqueue.lib.durations import EARLIEST, LATEST, is_number, seconds_in, seconds_of

from . import codecs, context
from .codecs import EVERYONE, JSON, LIMIT_LENGTH, LIMITS_LENGTH, STEP_LENGTH, TAG_LENGTH, decode

OnConflict = Literal["raise", "ignore", "replace"]

Duration = timedelta | float | str

When = datetime | Duration

QUEUE_LENGTH, KEY_LENGTH = 100, 255
# Of a key made by key_by() so much is the type; so much of a key that becomes free is its name.
KEY_BY_TYPE, NAME_LENGTH = 160, KEY_LENGTH - 17
# What follows the name in a key that was free again: the id of the task before, in 16 digits.
LATER_KEY = re.compile(r"~(0[0-8][0-9]{14})\Z")
# No database reaches such an id, and no later key would follow.
FAR = 10**14

MOST_TAGS = 20
# What the tag begins with by which the tasks of a sequence are found.
IN_SEQUENCE = "sequence:"
SEQUENCE_LENGTH = 50

PRIORITY = whole(-LARGEST, LARGEST)
MAX_ATTEMPTS = whole(1, LARGEST)
KEY = named(KEY_LENGTH)
LIMIT = named(LIMIT_LENGTH, without=",")
A_LIST = Check(
    "a list of names", lambda value: isinstance(value, Iterable) and not isinstance(value, str)
)
ON_CONFLICT = choice("raise", "ignore", "replace")
UNIQUE = choice("waiting", "live")
# From 1e9 on they are unix seconds that someone took for a time.
TIME = Check(
    "a datetime (as text ISO 8601), a timedelta, less than 1e9 seconds or a span such as '5m30s'",
    lambda value: (
        isinstance(value, timedelta)
        or (isinstance(value, str) and seconds_in(value) is not None)
        or (is_number(value) and value < 1e9)
    ),
)
WAIT = span()
DURATION = span(above=True)
SIGNALS = Check(
    f"a dict from names of signals, of at most {STEP_LENGTH} characters, to labels, or for a"
    " signal with several answers to a dict from these to labels",
    lambda value: is_labelled(value, lambda label: is_label(label) or is_labelled(label, is_label)),
)


def is_label(value: object) -> bool:
    return isinstance(value, str | Promise)


def is_labelled(value: object, holds: Callable[[object], bool]) -> bool:
    """Return whether a value is a dict from names to what holds."""
    if not isinstance(value, Mapping):
        return False
    return all(map(named(STEP_LENGTH).holds, value)) and all(map(holds, value.values()))


def checked(what: str, value: object, length: int) -> str:
    """Return a name of at most so many characters; raise InvalidTaskError where it is none."""
    name: str = named(length).require(f"The {what}", value, InvalidTaskError)
    return name


def checked_key(value: object) -> str:
    """Return a key as it is stored: a new random UUID for None. Raise what checked() does."""
    if value is None:
        return str(uuid4())
    key: str = KEY.require("The key", value, InvalidTaskError)
    if "~0" in key and (later := LATER_KEY.search(key)) and int(later[1]) >= FAR:
        raise InvalidTaskError(f"No key may end like that of a far later task: '{key[-17:]}'.")
    return key


def key_by(type_: str, data: JSON, names: object) -> str:
    """
    Return the key of tasks of this type with the same values of these names of their data; True or
    no names at all are the whole of it.

    Raise InvalidTaskError where the data has no such name.
    """
    by = [] if names is True else list(A_LIST.require("unique_by", names, InvalidTaskError))
    known = data if isinstance(data, dict) else {}
    if missing := [name for name in by if not isinstance(name, str) or name not in known]:
        raise InvalidTaskError(f"unique_by needs what the data has not: {missing[0]!r}.")
    values = {name: known[name] for name in by} if by else data
    try:
        text = json.dumps([type_, values], sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTaskError(f"unique_by makes a key of what JSON can hold: {error}.") from error
    return f"{type_[:KEY_BY_TYPE]}:{blake2b(text.encode(), digest_size=16).hexdigest()}"


def checked_user(value: object) -> str:
    """
    Return a user as it is stored: its ``str()``, and an empty text for None.

    Raise InvalidTaskError when that is no name, or the name of everyone.
    """
    if value is None or value == "":
        return ""
    user: str = KEY.require("The user", str(value), InvalidTaskError)
    if user == EVERYONE:
        raise InvalidTaskError(
            f"No user can be called '{user}': it names the share of all users without their own."
        )
    return user


def checked_limits(value: object) -> tuple[str, ...]:
    """
    Return names of limits as they may be stored: sorted, each once.

    Raise InvalidTaskError when one is no name, has a comma, names a family, or all are too long
    together.
    """
    given: Iterable[object] = A_LIST.require("The limits", value, InvalidTaskError)
    names = sorted({LIMIT.require("The name of a limit", one, InvalidTaskError) for one in given})
    if family := next((name for name in names if name.endswith(EVERYONE)), None):
        raise InvalidTaskError(
            f"A task lists a name such as '{family[:-1]}7', not the family '{family}' itself."
        )
    if len(",".join(names)) > LIMITS_LENGTH:
        raise InvalidTaskError(
            f"The names of a task's limits may have at most {LIMITS_LENGTH} characters together."
        )
    return tuple(names)


def checked_tags(value: object) -> tuple[str, ...]:
    """
    Return tags as they may be stored, each once.

    Raise InvalidTaskError when one is no name or that of a sequence, or there are more than
    MOST_TAGS.
    """
    given: Iterable[object] = A_LIST.require("The tags", value, InvalidTaskError)
    tags = tuple(dict.fromkeys(checked("tag", tag, TAG_LENGTH) for tag in given))
    if len(tags) > MOST_TAGS:
        raise InvalidTaskError(f"A task may have at most {MOST_TAGS} tags, not {len(tags)}.")
    if any(tag.startswith(IN_SEQUENCE) for tag in tags):
        raise InvalidTaskError(f"No tag can begin with '{IN_SEQUENCE}': give a sequence.")
    return tags


def checked_priority(value: object) -> int:
    return int(PRIORITY.require("The priority", value, InvalidTaskError))


def checked_duration(name: str, value: Duration | None) -> float | None:
    """
    Return a length of time in seconds.

    Raise InvalidTaskError when it is no timedelta, number or span, or not above 0.
    """
    return None if value is None else seconds_of(DURATION.require(name, value, InvalidTaskError))


def checked_backoff(value: object) -> list[object]:
    """Return a backoff as it is stored; raise InvalidTaskError where it can't be."""
    try:
        return backoff.kept(value)
    except ConfigError as error:
        raise InvalidTaskError(str(error)) from error


def checked_keys(value: Iterable[str]) -> Iterable[str]:
    """Return keys; raise ValueError for a single text, whose letters would count as keys."""
    keys: Iterable[str] = A_LIST.require("keys", value, ValueError)
    return keys


def checked_timeout(value: Duration | None, name: str = "timeout") -> float | None:
    """
    Return a length of time in seconds, such as for how long to wait.

    Raise ValueError when it is no timedelta, number or span, or below 0.
    """
    return None if value is None else seconds_of(WAIT.require(name, value, ValueError))


def encoded(
    value: object, name: str = "The data", *, limit: int | None = None, by: str = "MAX_PAYLOAD_SIZE"
) -> str:
    """
    Return a value as the text that is stored.

    Raise InvalidTaskError when the codec can't write it, which is JSON by default, or it is
    larger than the limit, which by default is MAX_PAYLOAD_SIZE.
    """
    codec = codecs.writer()
    try:
        text = codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        what = codec.name if codec.name == codecs.PickleCodec.name else "JSON"
        raise InvalidTaskError(f"{name} can't be written as {what}: {error}.") from error
    limit = options().MAX_PAYLOAD_SIZE if limit is None else limit
    if len(text) > limit:
        raise InvalidTaskError(
            f"{name} may have at most {limit} bytes as JSON, by {by}; this has {len(text)}."
        )
    return codecs.stored(text, codec)


def captured(given: Mapping[str, object] | None = None) -> str | None:
    """
    Return what a task that is submitted here takes along of its surroundings, to be stored.

    ``given`` takes the place of what providers capture. Raise InvalidTaskError when it is not
    for them, the codec can't write it, or it is too large.
    """
    values = context.captured(given)
    return carried(values) if values else None


def carried(values: Mapping[str, object]) -> str:
    name = f"The context ({', '.join(values)})"
    return encoded(values, name, limit=context.LONGEST, by="django_perfectqueue.context")


def moment(
    name: str, value: When | None, now: datetime | None = None
) -> datetime | timedelta | None:
    """
    Return a point in time: a datetime as it is, and seconds, a timedelta or a span such as
    "5m30s" as a timedelta, which the server adds to its own clock; or to ``now``.

    Raise InvalidTaskError when it is none of these, a datetime without a time zone, or
    further away than every database and every time zone can show.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        if timezone.is_naive(value):
            raise InvalidTaskError(f"{name} must be an aware datetime: {value} has no time zone.")
        return on_the_calendar(name, value)
    TIME.require(name, value, InvalidTaskError)
    seconds = seconds_in(value) or 0.0 if isinstance(value, str) else value
    try:
        wait = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        at = on_the_calendar(name, (now or timezone.now()) + wait)
    except (OverflowError, ValueError) as error:
        raise InvalidTaskError(f"{name} is too far away: {value}.") from error
    return wait if now is None else at


def on_the_calendar(name: str, value: datetime) -> datetime:
    """
    Return a time.

    Raise InvalidTaskError when some database could not store it, or some time zone not show
    it: PostgreSQL stores what no driver of Python can read.
    """
    try:
        if EARLIEST <= value <= LATEST:
            return value
    except OverflowError:
        pass  # A time zone whose offset goes by the time itself can't compare it.
    raise InvalidTaskError(
        f"{name} must be from 0001-01-02 to {LATEST:%Y-%m-%d} in UTC, not {value}."
    )


# Change data by a JSON merge patch.


def merged(value: JSON, patch: JSON) -> JSON:
    """
    Return what a JSON merge patch, RFC 7386, makes of a value; null removes a member.

    Raise InvalidTaskError where the patch is nested too deeply.
    """
    try:
        return merge(value, patch)
    except RecursionError as error:
        raise InvalidTaskError("The patch is nested too deeply.") from error


def merge(value: JSON, patch: JSON) -> JSON:
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), change)
    return result


def rewriter(patch: JSON) -> Callable[[str], str]:
    """
    Return what makes of a stored payload the patched one.

    That raises PayloadError where it can't be read, InvalidTaskError where the patched one
    can't be stored.
    """
    return lambda payload: encoded(merged(decode(payload), patch))
