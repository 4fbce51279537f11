"""What a value that people give must be, and the one form of message where it is not."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .durations import is_number, seconds_of

LARGEST = 2**31 - 1
SHOWN = 100

# What other queues call it.
ALIASES = {
    "max_retries": "max_attempts",
    "retries": "max_attempts",
    "countdown": "run_after",
    "eta": "run_after",
    "rate_limit": "limits",
    "task_id": "key",
    "bind": "takes_context",
    "MAX_REQUEST_PER_CHILD": "RECYCLE",
}


def nearest(word: str, words: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?``, or an empty text when no word is near."""
    close = difflib.get_close_matches(ALIASES.get(word, word), list(words), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


@dataclass(frozen=True, slots=True)
class Check:
    """
    Whether a value holds, and ``what`` it must be; ``words`` are the texts that it may be.

    In a message it is "NAME must be WHAT, not VALUE.", with the nearest of the words.
    """

    what: str
    holds: Callable[[Any], bool]
    words: tuple[str, ...] = ()

    def problem(self, value: object) -> str:
        """Return what a value must be and is not, as a sentence without its name; or nothing."""
        if self.holds(value):
            return ""
        return f"must be {self.what}, not {shown(value)}.{self.guess(value)}"

    def guess(self, value: object) -> str:
        """Return the nearest right word for a wrong one, as nearest() does."""
        given = value.values() if isinstance(value, Mapping) else [value]
        wrong = (word for word in given if isinstance(word, str) and word not in self.words)
        in_case = str.upper if self.words and self.words[0].isupper() else str.lower
        return next(filter(None, (nearest(in_case(word), self.words) for word in wrong)), "")

    def require(self, name: str, value: Any, error: type[Exception]) -> Any:
        """Return a value that holds; raise ``error``, which names it, for another."""
        if not self.holds(value):
            raise error(f"{name} {self.problem(value)}")
        return value

    def or_none(self) -> Check:
        return Check(
            f"{self.what}, or None", lambda value: value is None or self.holds(value), self.words
        )


def whole(least: int, most: int | None = None) -> Check:
    """Return the check of a whole number; True and False are none."""
    top = math.inf if most is None else most
    return Check(
        f"a whole number {bounds(least, most)}",
        lambda value: (
            isinstance(value, int) and not isinstance(value, bool) and least <= value <= top
        ),
    )


def number(least: float, most: float | None = None, *, above: bool = False, of: str = "") -> Check:
    """
    Return the check of a number, ``of`` a unit; ``above`` excludes the least.

    Infinity is only one where it is the ``most``.
    """
    top = math.nextafter(math.inf, 0) if most is None else most
    return Check(
        f"a number {f'of {of} ' if of else ''}{bounds(least, most, above)}",
        lambda value: is_number(value) and least <= value <= top and not (above and value == least),
    )


def span(*, least: float = 0, above: bool = False) -> Check:
    """Return the check of a length of time, as seconds_of() reads it."""

    def holds(value: object) -> bool:
        seconds = seconds_of(value)
        return seconds is not None and seconds >= least and not (above and seconds == least)

    end = f"{bounds(least, None, above)} s and at most a hundred years"
    return Check(f"a timedelta, seconds or a span such as '5m30s', {end}", holds)


def bounds(least: float, most: float | None, above: bool = False) -> str:
    if most is not None and most != math.inf:
        return f"from {in_digits(least)} to {in_digits(most)}"
    return f"{'above' if above else 'of at least'} {in_digits(least)}"


def in_digits(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


@functools.cache
def named(length: int, *, without: str = "") -> Check:
    """Return the check of a name: a text that every database stores, without some characters."""
    besides = f" or {without!r}" if without else ""

    def holds(value: object) -> bool:
        if not isinstance(value, str) or not 0 < len(value) <= length or "\x00" in value:
            return False
        if without and without in value:
            return False
        return value.isascii() or is_utf_8(value)

    return Check(f"a text of 1 to {length} characters of UTF-8, without NUL{besides}", holds)


def is_utf_8(text: str) -> bool:
    """Return whether a text can be written as UTF-8: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def choice(*words: str) -> Check:
    """Return the check of a text that is one of these."""
    return Check(f"one of {', '.join(map(repr, words))}", words.__contains__, words)


def names(what: str, holds: Callable[[str], bool] = bool) -> Check:
    """Return the check of a list of texts, each of which holds."""
    return Check(
        what,
        lambda value: (
            isinstance(value, list | tuple)
            and all(isinstance(text, str) and text and holds(text) for text in value)
        ),
    )


def text(length: int) -> Check:
    """Return the check of a text that may be empty."""
    name = named(length)
    return Check(
        f"a text of at most {length} characters of UTF-8, without NUL",
        lambda value: value == "" or name.holds(value),
    )


AWARE = Check(
    "a datetime with a time zone",
    lambda value: isinstance(value, datetime) and value.utcoffset() is not None,
)
TRUE_OR_FALSE = Check("True or False", lambda value: isinstance(value, bool))


def shown(value: object) -> str:
    """Return a value as a message shows it, cut where it is long."""
    path = getattr(value, "module_path", None)
    if path:
        return f"one of Django's tasks: give {path!r}"
    text = repr(value)
    if len(text) <= SHOWN:
        return text
    size = f" ({len(value)} characters)" if isinstance(value, str) else ""
    return f"{text[:SHOWN]}...{size}"
