"""Tables of what grows, with time or with each death, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import in_columns, listed

from .load import CYCLE

DAY_HOURS = 24.0
WARM_UP = 1 / 3
SIGNIFICANT = 2.0
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


@dataclass(frozen=True)
class Trend:
    """``slope`` is per hour and ``error`` its standard error, both in the figure's own unit."""

    least: float
    mean: float
    most: float
    slope: float
    error: float

    @property
    def after_a_day(self) -> float:
        """What it would have grown by after 24 hours."""
        return self.slope * DAY_HOURS

    def grows(self, allowed: float) -> bool:
        """
        Return whether it grows by more than a part of its mean in a day.

        It does so only when the slope is beyond what chance explains.
        """
        beyond_chance = self.slope > SIGNIFICANT * self.error
        return beyond_chance and self.after_a_day > allowed * max(self.mean, 1.0)


def peaks(samples: Sequence[tuple[float, float]], cycle: float) -> list[tuple[float, float]]:
    """Return the largest value of each whole cycle, at its middle, in seconds."""
    by_cycle: dict[int, list[float]] = {}
    for at, value in samples:
        by_cycle.setdefault(int(at // cycle), []).append(value)
    whole = sorted(by_cycle)[:-1]
    return [((number + 0.5) * cycle, max(by_cycle[number])) for number in whole]


def trend(samples: Sequence[tuple[float, float]], cycle: float) -> Trend:
    """
    Return the trend of samples, each a moment in seconds and a value.

    The first third is left out: until then caches fill and retention has let nothing go.
    Raise ValueError when fewer than three whole cycles are left.
    """
    points = peaks(samples, cycle)
    points = points[math.ceil(len(points) * WARM_UP) :]
    if len(points) < 3:
        raise ValueError(f"{len(points)} cycles are too few for a trend; run it for longer.")
    hours = [at / 3600 for at, _value in points]
    values = [value for _at, value in points]
    middle, mean = sum(hours) / len(hours), sum(values) / len(values)
    spread = sum((hour - middle) ** 2 for hour in hours)
    slope = sum((h - middle) * (v - mean) for h, v in zip(hours, values, strict=True)) / spread
    rest = [v - mean - slope * (h - middle) for h, v in zip(hours, values, strict=True)]
    error = math.sqrt(sum(one * one for one in rest) / (len(points) - 2) / spread)
    return Trend(min(values), mean, max(values), slope, error)


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
