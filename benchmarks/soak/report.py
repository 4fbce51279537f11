"""A table of what grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .load import CYCLE
from .trend import Trend, trend

ALLOWED = 0.10
NAMES = {
    "processes": "processes",
    "memory_mib": "memory of the worker, MiB (PSS)",
    "files": "open files",
    "threads": "threads",
    "connections": "connections",
    "database_mib": "database on disk, MiB",
}


def trends(samples: Sequence[Mapping[str, float]]) -> dict[str, Trend]:
    """Return the trend of each figure; raise ValueError when it was run for too short."""
    names = [name for name in samples[0] if name != "at"]
    return {name: trend([(s["at"], s[name]) for s in samples], CYCLE) for name in names}


def growing(found: Mapping[str, Trend]) -> list[str]:
    """Return the figures that would grow by more than a tenth in a day."""
    return [name for name, one in found.items() if one.grows(ALLOWED)]


def report(record: Mapping[str, Any]) -> str:
    """Return a table in Markdown for one database."""
    return "\n".join(rows(record))


def rows(record: Mapping[str, Any]) -> Iterator[str]:
    found = trends(record["samples"])
    yield (
        f"{record['database']}: {record['minutes']:g} minutes, {record['submitted']:,} tasks,"
        f" {record['processors']} processors"
    )
    yield ""
    yield "| Figure | least | mean | most | a day would add | |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    grown = growing(found)
    for name, one in found.items():
        label = NAMES.get(name) or f"rows of `{name.removeprefix('rows_')}`"
        error = one.error * 24
        yield (
            f"| {label} | {one.least:,.1f} | {one.mean:,.1f} | {one.most:,.1f}"
            f" | {one.after_a_day:+,.1f} ± {error:,.1f} | {'grows' if name in grown else 'flat'} |"
        )
