"""Stacked bars over time, as SVG that the template draws."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.utils.formats import date_format
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Worker
from django_perfectqueue.store import Tally

KINDS = {"finished": _("finished"), "retried": _("retried"), "failed": _("failed")}
WIDTH, HEIGHT = 600.0, 120.0
GAP = 0.15
NAMED = 3


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
class ChartMark:
    """A vertical line where workers started, and what it says of them."""

    x: str
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars from left to right, the oldest first, as high as the ``largest`` of them."""

    bars: list[Bar]
    largest: int
    marks: list[ChartMark] = field(default_factory=list)
    width: float = WIDTH
    height: float = HEIGHT

    @property
    def labels(self) -> list[object]:
        """The names of the counts, in the order of the stack."""
        return list(KINDS.items())

    @property
    def rows(self) -> list[Bar]:
        """The bars that have something, the newest first."""
        return [bar for bar in reversed(self.bars) if any(bar.counts)]


def chart(
    points: Sequence[tuple[datetime, Tally]], form: str = "H:i", workers: Sequence[Worker] = ()
) -> Chart:
    """
    Return the bars of how attempts ended, one for each point; ``form`` is that of the times.

    Marks show where the ``workers`` started: a release, or a new generation after a reload.
    """
    stacks = [[getattr(tally, kind) for kind in KINDS] for _start, tally in points]
    largest = max(map(sum, stacks), default=0)
    step = WIDTH / max(1, len(points))
    bars = []
    for number, ((start, _tally), counts) in enumerate(zip(points, stacks, strict=True)):
        parts, below = [], 0
        for kind, count in zip(KINDS, counts, strict=True):
            if count:
                below += count
                place = step * (number + GAP / 2), HEIGHT * (1 - below / largest)
                size = step * (1 - GAP), HEIGHT * count / largest
                parts.append(Part(kind, *(f"{length:.2f}" for length in (*place, *size))))
        bars.append(Bar(date_format(template_localtime(start), form), counts, parts))
    return Chart(bars, largest, marks([start for start, _tally in points], workers))


def marks(starts: Sequence[datetime], workers: Sequence[Worker]) -> list[ChartMark]:
    """Return a mark for each bar in whose time workers started, which names up to NAMED of them."""
    started: dict[int, list[str]] = {}
    for worker in workers:
        if starts and worker.started_at >= starts[0]:
            words = {"worker": str(worker), "generation": worker.generation}
            place = bisect_right(starts, worker.started_at) - 1
            label = gettext("%(worker)s, generation %(generation)d") % words
            started.setdefault(place, []).append(label)
    found = []
    for place, labels in sorted(started.items()):
        when = date_format(template_localtime(starts[place]), "H:i")
        more = [f"+{len(labels) - NAMED}"] if len(labels) > NAMED else []
        label = f"{when}: {'; '.join([*sorted(labels)[:NAMED], *more])}"
        found.append(ChartMark(f"{WIDTH / len(starts) * place:.2f}", printable(label)))
    return found
