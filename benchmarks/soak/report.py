"""Tables of what grows, with time or with each death, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.report import in_columns, listed

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
OF_DEATHS = {
    "processes": "processes of the worker",
    "files": "open files of the supervisor",
    "threads": "threads of the supervisor",
    "memory_kib": "anonymous memory of the supervisor, KiB",
    "folder": "sockets in the folder of NOTIFY",
}
ALLOWED_BY_DEATHS = {"memory_kib": 256.0}
"""What may be more at the end; the allocator keeps some memory that it has had."""


def trends(samples: Sequence[Mapping[str, float]]) -> dict[str, Trend]:
    """Return the trend of each figure; raise ValueError when it was run for too short."""
    names = [name for name in samples[0] if name != "at"]
    return {name: trend([(s["at"], s[name]) for s in samples], CYCLE) for name in names}


def growing(found: Mapping[str, Trend]) -> list[str]:
    """Return the figures that would grow by more than a tenth in a day."""
    return [name for name, one in found.items() if one.grows(ALLOWED)]


def grown_by_deaths(samples: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the figures that are greater at the end than after the first deaths."""
    first, last = samples[0], samples[-1]
    allowed = ALLOWED_BY_DEATHS
    return [name for name in OF_DEATHS if last[name] > first[name] + allowed.get(name, 0.0)]


TRENDS: dict[str, Callable[[tuple[str, Trend]], str]] = {
    "Figure": lambda item: NAMES.get(item[0]) or f"rows of `{item[0].removeprefix('rows_')}`",
    "least": lambda item: f"{item[1].least:,.1f}",
    "mean": lambda item: f"{item[1].mean:,.1f}",
    "most": lambda item: f"{item[1].most:,.1f}",
    "a day would add": lambda item: f"{item[1].after_a_day:+,.1f} ± {item[1].error * 24:,.1f}",
    "": lambda item: "grows" if item[1].grows(ALLOWED) else "flat",
}


def report(record: Mapping[str, Any]) -> str:
    terms, found = record["terms"], trends(record["samples"])
    return (
        f"{record['database']}: {terms['minutes']:g} minutes, {record['submitted']:,} tasks,"
        f" {terms['processors']} processors\n\n{listed(found.items(), TRENDS)}"
    )


def deaths_report(record: Mapping[str, Any]) -> str:
    samples = record["samples"]
    first, last, grown = samples[0], samples[-1], grown_by_deaths(samples)
    begun = ", ".join(f"{cause} {count:,}" for cause, count in record["begun"].items())
    rows = [
        [
            label,
            f"{first[name]:,.0f}",
            f"{max(sample[name] for sample in samples):,.0f}",
            f"{last[name]:,.0f}",
            "grows" if name in grown else "flat",
        ]
        for name, label in OF_DEATHS.items()
    ]
    return (
        f"{record['database']}: {last['deaths']:,.0f} deaths in {record['seconds']:,.0f} s,"
        f" {record['terms']['processors']} processors, {record['killed']} more processes killed\n"
        f"Tasks begun: {begun}\n\n"
        + in_columns(["Figure", f"after {first['deaths']:,.0f}", "most", "at the end", ""], rows)
    )
