"""Stacked bars over time, as SVG that the template draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.formats import date_format
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]

WIDTH, HEIGHT = 600.0, 120.0
GAP = 0.15


@dataclass(frozen=True, slots=True)
class Part:
    """A rectangle of a bar; ``kind`` is its class, which has the colour."""

    kind: str
    x: str
    y: str
    width: str
    height: str


@dataclass(frozen=True, slots=True)
class Bar:
    """What there was in one span of time: the time, the counts in order, and the drawn parts."""

    when: str
    counts: list[int]
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Chart:
    """
    Bars from left to right, the oldest first, as high as the ``largest`` of them.

    ``kinds`` are the classes of the counts, in the order of the stack.
    """

    kinds: list[str]
    bars: list[Bar]
    largest: int
    width: float = WIDTH
    height: float = HEIGHT

    @property
    def rows(self) -> list[Bar]:
        """The bars that have something, the newest first."""
        return [bar for bar in reversed(self.bars) if any(bar.counts)]


def chart(points: Sequence[tuple[datetime, Mapping[str, int]]], kinds: Sequence[str]) -> Chart:
    """Return the bars of counts by kind, one for each point."""
    largest = max((sum(counts[kind] for kind in kinds) for _start, counts in points), default=0)
    step = WIDTH / max(1, len(points))
    bars = []
    for number, (start, counts) in enumerate(points):
        parts, below = [], 0
        for kind in kinds:
            if counts[kind]:
                below += counts[kind]
                place = step * (number + GAP / 2), HEIGHT * (1 - below / largest)
                size = step * (1 - GAP), HEIGHT * counts[kind] / largest
                parts.append(Part(kind, *(f"{length:.2f}" for length in (*place, *size))))
        when = date_format(template_localtime(start), "H:i")
        bars.append(Bar(when, [counts[kind] for kind in kinds], parts))
    return Chart(list(kinds), bars, largest)
