"""Times, spans and texts as a person reads and writes them."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime, timezone

from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, localtime

from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.lib.checks import Check
from django_perfectqueue.lib.durations import seconds_in, short_duration

NUMBER = re.compile(r"-?\d+(\.\d+)?")
LONGEST_ID = 19
SPAN = Check("a span such as '90s', '5m30s' or '1d12h'", lambda text: seconds_in(text) is not None)


def point(name: str, value: object) -> datetime | str | None:
    """
    Return a time that was written as unix seconds, ISO 8601 or a duration such as "5m30s".

    A duration is returned as it is. Raise InvalidTaskError for anything else.
    """
    if value is None:
        return None
    if isinstance(value, str) and seconds_in(value) is not None:
        return value
    if isinstance(value, str) and not NUMBER.fullmatch(value):
        return iso_time(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise no_time(name, value)
    return unix_time(name, value)


def seconds(name: str, span: str | None) -> float | None:
    """
    Return the seconds of a span such as "5m30s".

    Raise InvalidTaskError for anything else.
    """
    if span is not None:
        SPAN.require(name, span, InvalidTaskError)
    return None if span is None else seconds_in(span)


def unix_time(name: str, value: float | str) -> datetime:
    """
    Return the time of a number of seconds since 1970.

    Raise InvalidTaskError when it is no number, or out of reach.
    """
    try:
        return datetime.fromtimestamp(float(value), tz=timezone.utc)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidTaskError(
            f"{name} must be unix seconds from year 1 to 9999, not {value}."
        ) from error


def iso_time(name: str, value: str) -> datetime:
    try:
        moment = parse_datetime(value)
    except ValueError:
        moment = None
    if moment is None:
        raise no_time(name, value)
    if is_naive(moment):
        raise InvalidTaskError(f"{name} needs an offset, such as '{value}Z'.")
    return moment


def no_time(name: str, value: object) -> InvalidTaskError:
    return InvalidTaskError(
        f"{name} must be unix seconds, ISO 8601 with an offset, or a span such as '5m30s', not"
        f" {value!r}."
    )


def local(moment: datetime) -> str:
    return localtime(moment).isoformat(" ", "milliseconds")


def ago(moment: datetime, now: datetime) -> str:
    return f"{short_duration((now - moment).total_seconds())} ago"


def or_more(count: int, *, more: bool) -> str:
    """Return a count; with ``more`` there may be more, so of none nothing is known."""
    if more:
        return f"{count:,}+" if count else "-"
    return f"{count:,}"


def is_id(text: str) -> bool:
    """Return whether a text may be the id of a task."""
    return text.isascii() and text.isdecimal() and len(text) < LONGEST_ID


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(column_count(character) for character in text)


def column_count(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return a text that takes no more than so many columns, with … where it was cut."""
    if columns_of(text) <= width:
        return text
    kept, room = "", width - 1
    for character in text:
        room -= column_count(character)
        if room < 0:
            break
        kept += character
    return kept + "…"


def padded(text: str, width: int, right: bool = False) -> str:
    blanks = " " * (width - columns_of(text))
    return blanks + text if right else text + blanks
