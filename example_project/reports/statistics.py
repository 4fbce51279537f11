"""What sales say: totals, a rolling mean, and how sure the mean of a day is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from .sales import Sale, per_day, per_item

WEEK = 7


def summarise(sales: Sequence[Sale], *, resamples: int) -> dict[str, Any]:
    """Return the figures that a report and its chart show, as JSON can hold them."""
    days = per_day(sales)
    amounts = [float(amount) for amount in days.values()]
    low, high = confidence_interval(amounts, resamples)
    return {
        "rows": len(sales),
        "total": str(sum(days.values())),
        "low": low,
        "high": high,
        "days": [day.isoformat() for day in days],
        "amounts": amounts,
        "rolling": rolling_mean(amounts),
        "items": [about_item(name, own, resamples) for name, own in per_item(sales).items()],
    }


def about_item(name: str, sales: Sequence[Sale], resamples: int) -> dict[str, Any]:
    amounts = [float(amount) for amount in per_day(sales).values()]
    low, high = confidence_interval(amounts, resamples)
    return {"name": name, "total": sum(amounts), "low": low, "high": high}


def rolling_mean(amounts: Sequence[float], window: int = WEEK) -> list[float]:
    """Return the mean of each day and those before it, a week at most."""
    weeks = [amounts[max(0, end - window) : end] for end in range(1, len(amounts) + 1)]
    return [sum(week) / len(week) for week in weeks]


def confidence_interval(amounts: Sequence[float], resamples: int) -> tuple[float, float]:
    """
    Return the bounds of the mean with 95 % confidence, by the bootstrap.

    The days are drawn again and again with replacement, always by the same seed, so that
    a file's figures are the same whenever it is summarised.
    """
    draw, size = random.Random(0).choices, len(amounts)
    means = sorted(sum(draw(amounts, k=size)) / size for _ in range(resamples))
    edge = resamples // 40
    return means[edge], means[-1 - edge]
