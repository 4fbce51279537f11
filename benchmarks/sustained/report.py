"""Whether the rate holds and nothing grows: figures by third of a run, in Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.report import in_columns, listed

THIRDS = 3
TENTHS = 10
DAY = 86_400.0
WARM_UP = 1 / 3
LONG = 1800.0
"""Seconds of a run from which on trends are taken."""
SIGNIFICANT = 2.0
ALLOWED = 0.10
NAMES = {
    "processes": "processes",
    "memory_mib": "memory of the worker, MiB (PSS)",
    "files": "open files",
    "threads": "threads",
    "connections": "connections",
}
Samples = Sequence[Mapping[str, float]]


def is_pinned(number: int, intervals: int) -> bool:
    """Return whether a snapshot is open during an interval: those of the middle third."""
    return intervals <= number * THIRDS < 2 * intervals


# Ratios


class Reach(NamedTuple):
    """A ratio that a run is to reach; ``most`` says that it may not be more."""

    name: str
    value: float
    limit: float
    most: bool = False

    @property
    def is_missed(self) -> bool:
        return self.value > self.limit if self.most else self.value < self.limit

    @property
    def bound(self) -> str:
        return f"{'≤' if self.most else '≥'} {self.limit:g}"


def third(samples: Samples, name: str, number: int) -> list[float]:
    """Return the values of a figure in the first, second or last third."""
    size = len(samples) // THIRDS
    return [sample[name] for sample in samples[number * size : (number + 1) * size]]


def reaches(samples: Samples) -> list[Reach]:
    """Return what a run is to reach, and what it has."""
    tenth = max(1, len(samples) // TENTHS)
    rates = [sample["rate"] for sample in samples]
    first, last = statistics.median(rates[:tenth]), statistics.median(rates[-tenth:])
    free, pinned = (statistics.median(third(samples, "rate", number)) for number in (0, 1))
    waits = [statistics.median(third(samples, "wait", number)) for number in (0, 1)]
    found = [
        Reach("rate, last tenth ÷ first tenth", last / first, 0.95),
        Reach("rate, beside the snapshot ÷ before", pinned / free, 0.6),
        Reach("a lone task's latency, beside the snapshot ÷ before", waits[1] / waits[0], 2, True),
    ]
    for name, label in (("data_mib", "tables"), ("indexes_mib", "indexes")):
        *_sizes, end = after = third(samples, name, 2)
        if before := after[len(after) // 2]:
            words = f"size of {label}, at the end ÷ half a third before"
            found.append(Reach(words, end / before, 1.1, True))
    if "purge" in samples[-1]:
        share = samples[-1]["purge"] / samples[-1]["server"]
        found.append(
            Reach("purge and upkeep, part of the server's processor time", share, 0.15, True)
        )
    return found


# Trends


@dataclass(frozen=True)
class Trend:
    """``growth`` is what would come in a day, and ``error`` the standard error of that."""

    least: float
    mean: float
    most: float
    growth: float
    error: float

    @property
    def is_growing(self) -> bool:
        """Whether a tenth would come in a day, and that is more than chance explains."""
        return self.growth > max(ALLOWED * max(self.mean, 1.0), SIGNIFICANT * self.error)


def trend(samples: Samples, name: str) -> Trend:
    """
    Return the trend of a figure.

    The first third is left out: until then caches fill and retention has let nothing go.
    """
    points = samples[math.ceil(len(samples) * WARM_UP) :]
    days = [sample["at"] / DAY for sample in points]
    values = [sample[name] for sample in points]
    growth, start = statistics.linear_regression(days, values)
    rest = sum((v - start - growth * d) ** 2 for d, v in zip(days, values, strict=True))
    error = math.sqrt(rest / (len(points) - 2) / len(points) / statistics.pvariance(days))
    return Trend(min(values), statistics.mean(values), max(values), growth, error)


def trends(samples: Samples) -> dict[str, Trend]:
    """Return the trend of each figure of the worker; none where the run is short."""
    if samples[-1]["at"] < LONG:
        return {}
    return {name: trend(samples, name) for name in NAMES if name in samples[0]}


def growing(samples: Samples) -> list[str]:
    """Return the figures that would grow by more than a tenth in a day."""
    return [name for name, one in trends(samples).items() if one.is_growing]


# Tables


def amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


BY_THIRD: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "tasks a second, median": ("rate", statistics.median),
    "a lone task's latency, ms, median": ("wait", statistics.median),
    "tables, MiB, most": ("data_mib", max),
    "indexes, MiB, most": ("indexes_mib", max),
    "rows of tasks, most": ("rows_task", max),
}
DEAD = {
    "postgresql": "dead rows, most",
    "mariadb": "undo logs kept, most",
    "sqlite": "WAL, MiB, most",
}
TRENDS: dict[str, Callable[[tuple[str, Trend]], str]] = {
    "Figure": lambda item: NAMES[item[0]],
    "least": lambda item: f"{item[1].least:,.1f}",
    "mean": lambda item: f"{item[1].mean:,.1f}",
    "most": lambda item: f"{item[1].most:,.1f}",
    "a day would add": lambda item: f"{item[1].growth:+,.1f} ± {item[1].error:,.1f}",
    "": lambda item: "grows" if item[1].is_growing else "flat",
}


def report(record: Mapping[str, Any]) -> str:
    terms, samples, database = record["terms"], record["samples"], record["database"]
    figures = {**BY_THIRD, DEAD[database]: ("dead", max)}
    rows = [
        [label, *(amount(of(third(samples, name, number))) for number in range(THIRDS))]
        for label, (name, of) in figures.items()
    ]
    reached = [
        [one.name, f"{one.value:.2f}", one.bound, "missed" if one.is_missed else "reached"]
        for one in reaches(samples)
    ]
    found = trends(samples)
    return "\n\n".join(
        [
            f"{database}: {terms['minutes']:g} minutes, {record['submitted']:,} tasks,"
            f" {terms['processors']} processors, retention {terms['retention']:g} s",
            in_columns(["", "before", "beside the snapshot", "after"], rows),
            in_columns(["", "is", "to reach", ""], reached),
            *([listed(found.items(), TRENDS)] if found else []),
        ]
    )
