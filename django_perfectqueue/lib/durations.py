"""How a span of time is told to people, and how they tell one."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any, TypeGuard

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
LONGEST = 3_155_760_000.0
"""A hundred years, in seconds."""
EARLIEST = datetime(1, 1, 2, tzinfo=timezone.utc)
LATEST = datetime(9999, 12, 30, tzinfo=timezone.utc)
"""The first and the last time that every database stores and every time zone can show."""


def seconds_in(text: str) -> float | None:
    """Return the seconds of a text such as "90s", "5m30s" or "1d12h"; None where it is none."""
    parts = SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def seconds_of(value: timedelta | float | str) -> float | None:
    """Return the seconds of a wait, from 0 to a hundred years; None where it is none."""
    seconds = seconds_in(value) if isinstance(value, str) else value
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    return float(seconds) if is_number(seconds) and 0 <= seconds <= LONGEST else None


def is_number(value: Any) -> TypeGuard[float]:
    """Tell whether a value is a number, such as seconds are; True, False and NaN are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def span(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for size, unit in UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def per(count: int, seconds: float) -> str:
    """Return a rate, such as "10/min"."""
    named = {float(size): unit for size, unit in UNITS}
    return f"{count}/{named.get(seconds) or span(seconds)}"
