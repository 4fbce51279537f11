"""Whether a figure grows: least squares over the peaks of each cycle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DAY_HOURS = 24.0
WARM_UP = 1 / 3
SIGNIFICANT = 2.0


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
