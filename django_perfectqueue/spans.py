"""How a span of time is told to people."""

from __future__ import annotations

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


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
