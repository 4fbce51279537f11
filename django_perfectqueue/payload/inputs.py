"""What a program gives along, checked and in the form in which it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Literal
from uuid import uuid4

from django.utils import timezone

from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.lib.durations import EARLIEST, LATEST, seconds_in, seconds_of
from django_perfectqueue.lib.durations import LONGEST as LONGEST_DURATION
from django_perfectqueue.payload.names import EVERYONE, LIMIT_LENGTH, LIMITS_LENGTH, TAG_LENGTH

from . import codecs, context

OnConflict = Literal["raise", "ignore", "replace"]

Duration = timedelta | float | str

When = datetime | Duration

QUEUE_LENGTH, KEY_LENGTH = 100, 255

MOST_TAGS = 20

SMALLEST, LARGEST = -(2**31) + 1, 2**31 - 1


def checked(name: str, value: object, length: int) -> str:
    """
    Return a name as it may be stored.

    Raise InvalidTaskError when it is no text, empty, too long, or has a NUL character or
    half of a surrogate pair.
    """
    if not isinstance(value, str):
        path = getattr(value, "module_path", None)
        given = f"one of Django's tasks: give {path!r}" if path else repr(value)
        raise InvalidTaskError(f"The {name} must be a string, not {given}.")
    if not value:
        raise InvalidTaskError(f"The {name} must not be empty.")
    if len(value) > length:
        raise InvalidTaskError(
            f"The {name} may have at most {length} characters; this one has {len(value)}."
        )
    if "\x00" in value:
        raise InvalidTaskError(f"The {name} must not hold a NUL character.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidTaskError(f"The {name} can't be written as UTF-8: {error}.") from error
    return value


def checked_key(value: object) -> str:
    """Return a key as it is stored: a new random UUID for None. Raise what checked() does."""
    return str(uuid4()) if value is None else checked("key", value, KEY_LENGTH)


def checked_user(value: object) -> str:
    """
    Return a user as it is stored: its ``str()``, and an empty text for None.

    Raise InvalidTaskError when that is no name, or the name of everyone.
    """
    user = "" if value in (None, "") else checked("user", str(value), KEY_LENGTH)
    if user == EVERYONE:
        raise InvalidTaskError(
            f"No user can be called '{user}': that is the share of all who have none of their own."
        )
    return user


def checked_limits(value: object) -> tuple[str, ...]:
    """
    Return names of limits as they may be stored: sorted, each once.

    Raise InvalidTaskError when one is no name, has a comma, or all are too long together.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidTaskError(f"The limits must be a list of names, not {value!r}.")
    names = sorted({checked("name of a limit", name, LIMIT_LENGTH) for name in value})
    for name in names:
        if "," in name:
            raise InvalidTaskError(f"The name of a limit must not hold a comma: {name!r}.")
    if len(",".join(names)) > LIMITS_LENGTH:
        raise InvalidTaskError(
            f"The names of a task's limits may have at most {LIMITS_LENGTH} characters together."
        )
    return tuple(names)


def checked_tags(value: object) -> tuple[str, ...]:
    """
    Return tags as they may be stored, each once.

    Raise InvalidTaskError when one is no name, or there are more than MOST_TAGS.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidTaskError(f"The tags must be a list of names, not {value!r}.")
    tags = tuple(dict.fromkeys(checked("tag", tag, TAG_LENGTH) for tag in value))
    if len(tags) > MOST_TAGS:
        raise InvalidTaskError(f"A task may have at most {MOST_TAGS} tags, not {len(tags)}.")
    return tags


def checked_priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not SMALLEST <= value <= LARGEST:
        raise InvalidTaskError(
            f"The priority must be a whole number from {SMALLEST} to {LARGEST}, not {value!r}."
        )
    return int(value)


def checked_duration(name: str, value: Duration | None) -> float | None:
    """
    Return a length of time in seconds.

    Raise InvalidTaskError when it is no timedelta, number or span, or not above 0.
    """
    if value is None:
        return None
    if isinstance(value, str):
        parse_duration(name, value)
    seconds = seconds_of(value)
    if not seconds:
        raise InvalidTaskError(
            f"{name} must be a timedelta, seconds or a span such as '5m30s', above 0 and at most"
            f" {LONGEST_DURATION:.0f} seconds, not {value!r}."
        )
    return seconds


def checked_keys(value: Iterable[str]) -> Iterable[str]:
    """Return keys; raise ValueError for a single text, whose letters would count as keys."""
    if isinstance(value, str):
        raise ValueError(f"keys must be a list of keys, not {value!r}.")
    return value


def checked_timeout(value: Duration | None, name: str = "timeout") -> float | None:
    """
    Return a length of time in seconds, such as for how long to wait.

    Raise ValueError when it is no timedelta, number or span, or below 0.
    """
    if value == 0 or value == timedelta():
        return 0.0
    try:
        return checked_duration(name, value)
    except InvalidTaskError as error:
        raise ValueError(str(error).replace("above 0", "0 or above")) from None


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
    if isinstance(value, str):
        value = parse_duration(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise InvalidTaskError(
            f"{name} must be a datetime, a timedelta, seconds or a span such as '5m30s',"
            f" not {value!r}."
        )
    try:
        wait = value if isinstance(value, timedelta) else timedelta(seconds=value)
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


def parse_duration(name: str, text: str) -> float:
    """
    Return the seconds of a text such as "90s", "5m30s" or "1d12h".

    Raise InvalidTaskError when any of it is something else.
    """
    seconds = seconds_in(text)
    if seconds is None:
        raise InvalidTaskError(
            f"{name} must be a span such as '90s', '5m30s' or '1d12h', not {text!r}."
        )
    return seconds
