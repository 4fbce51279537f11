"""Draw a report's chart: an SVG of daily sales, their rolling mean and its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 56, 28
TICKS = 4

STYLE = """
text { font: 11px system-ui, sans-serif; fill: #52606d }
.title { font-size: 14px; font-weight: 600; fill: #1f2933 }
.grid { stroke: #e4e7eb }
.bar { fill: #9fc5e8 }
.band { fill: #f0b429; opacity: .25 }
.mean { fill: none; stroke: #c2410c; stroke-width: 2; stroke-linejoin: round }
"""


@dataclass(frozen=True)
class Scale:
    """Where amounts and days lie on the drawing."""

    top: float
    days: int

    @property
    def step(self) -> float:
        return (WIDTH - LEFT - RIGHT) / self.days

    def x(self, day: float) -> float:
        return LEFT + day * self.step

    def y(self, amount: float) -> float:
        return HEIGHT - BOTTOM - amount / self.top * (HEIGHT - TOP - BOTTOM)


def draw(title: str, figures: Mapping[str, Any]) -> str:
    amounts = figures["amounts"]
    scale = Scale(top=round_up(max(amounts)), days=len(amounts))
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="title" x="16" y="22">{escape(title)}</text>',
        f'<text x="16" y="38">{escape(caption(figures))}</text>',
        *grid(scale),
        *bars(scale, amounts),
        band(scale, figures["low"], figures["high"]),
        mean(scale, figures["rolling"]),
        *days(scale, figures["days"]),
    ]
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<style>{STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


def caption(figures: Mapping[str, Any]) -> str:
    low, high, total = figures["low"], figures["high"], float(figures["total"])
    return f"{total:,.2f} in all; {low:,.0f} to {high:,.0f} on an average day (95 %)"


def round_up(amount: float) -> float:
    """Return the next number that reads well on an axis."""
    if amount <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(amount))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= amount)


def grid(scale: Scale) -> Iterator[str]:
    for tick in range(TICKS + 1):
        amount = scale.top * tick / TICKS
        y = scale.y(amount)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{amount:,g}</text>'


def bars(scale: Scale, amounts: list[float]) -> Iterator[str]:
    width = scale.step * 0.8
    for day, amount in enumerate(amounts):
        x, y = scale.x(day + 0.1), scale.y(max(amount, 0))
        yield (
            f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}"'
            f' height="{scale.y(0) - y:.1f}"/>'
        )


def band(scale: Scale, low: float, high: float) -> str:
    y, height = scale.y(high), scale.y(low) - scale.y(high)
    return (
        f'<rect class="band" x="{LEFT}" y="{y:.1f}" width="{WIDTH - LEFT - RIGHT}"'
        f' height="{height:.1f}"/>'
    )


def mean(scale: Scale, rolling: list[float]) -> str:
    points = " ".join(
        f"{scale.x(day + 0.5):.1f},{scale.y(amount):.1f}" for day, amount in enumerate(rolling)
    )
    return f'<polyline class="mean" points="{points}"/>'


def days(scale: Scale, names: list[str]) -> Iterator[str]:
    y = HEIGHT - 10
    yield f'<text x="{LEFT}" y="{y}">{escape(names[0])}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{y}" text-anchor="end">{escape(names[-1])}</text>'
