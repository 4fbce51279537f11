"""Durations: checked, parsed, and written for people."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from typing import TypeGuard

from django.utils.timezone import is_aware, localtime, make_aware, now

UNITS = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
RATE = re.compile(r"(\d{1,15})/(.+)")
NUMBER = re.compile(r"\d+(\.\d+)?")
PERIODS = ("s", "sec", "second", "m", "min", "minute", "h", "hour", "d", "day")
SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
# A hundred years, in seconds.
LONGEST = 3_155_760_000.0
EARLIEST = datetime(1, 1, 2, tzinfo=timezone.utc)
# The first and the last time that every database stores and every time zone can show.
LATEST = datetime(9999, 12, 30, tzinfo=timezone.utc)


def seconds_in(text: str) -> float | None:
    """Return the seconds of a text such as "90s", "5m30s" or "1d12h"; None for another text."""
    parts = DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def rate_in(text: str) -> tuple[int, float] | None:
    """Return how many, and within how many seconds, from a text such as "10/min" or "10/60"."""
    found = RATE.fullmatch(text)
    if not found or not int(found[1]):
        return None
    count, period = int(found[1]), found[2]
    if NUMBER.fullmatch(period):
        return count, float(period)
    span = seconds_in(f"1{period[0]}" if period in PERIODS else period)
    return None if span is None else (count, span)


def time_in(text: str, direction: int) -> datetime:
    """
    Return a time: *2h* away, at most a hundred years; when it is *10:00*; or ISO 8601.

    The ``direction`` is -1 for the past, 1 for the future. A time without an offset is in the
    current time zone. Raise ValueError or OverflowError for another text.
    """
    if (seconds := seconds_in(text)) is not None:
        return now() + direction * timedelta(seconds=min(seconds, LONGEST))
    is_daily = text[2:3] == ":"
    at = datetime.fromisoformat(f"{localtime():%Y-%m-%d} {text}" if is_daily else text)
    at = min(max(EARLIEST, at if is_aware(at) else make_aware(at)), LATEST)
    is_other_day = is_daily and direction * (now() - at) > timedelta()
    return at + direction * timedelta(days=is_other_day)


def time_to_come(text: str) -> datetime:
    """Return a time as time_in() does; raise ValueError also for one that has passed."""
    if (at := time_in(text, 1)) <= now():
        raise ValueError(f"{text} has passed")
    return at


def seconds_of(value: object) -> float | None:
    """Return the seconds of a wait, from 0 to a hundred years; None for anything else."""
    seconds = seconds_in(value) if isinstance(value, str) else value
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    return float(seconds) if is_number(seconds) and 0 <= seconds <= LONGEST else None


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number; True, False and NaN are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def long_duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return " ".join(f"{count} {unit}" for count, unit in largest_units(seconds))


def short_duration(seconds: float) -> str:
    """Return a duration as people write it: "4ms", "5.2s", "5m30s", "1d12h"."""
    seconds = abs(seconds)
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s".replace(".0s", "s")
    parts = largest_units(seconds)
    return "".join(f"{count}{unit.replace('min', 'm')}" for count, unit in parts if count)


def largest_units(seconds: float) -> list[tuple[int, str]]:
    """Return how many whole days, hours, minutes and seconds: the first of them, and the next."""
    left = round(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in UNITS.items():
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return parts[:2]


def per(count: int, seconds: float) -> str:
    """Return a rate, such as "10/min"."""
    named = {float(size): unit for unit, size in UNITS.items()}
    return f"{count}/{named.get(seconds) or short_duration(seconds)}"
