"""Stacked bars over time, as SVG that the template draws."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from typing import Any

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


def chart(
    points: Sequence[tuple[datetime, Tally]], form: str = "H:i", workers: Sequence[Worker] = ()
) -> dict[str, object]:
    """
    Return the bars of how attempts ended, one for each point, the oldest first, as high as the
    ``largest``; ``form`` is that of the times. The ``rows`` are the bars that have something.

    Marks show where the ``workers`` started: a release, or a new generation after a reload.
    """
    stacks = [[getattr(tally, kind) for kind in KINDS] for _start, tally in points]
    largest = max(map(sum, stacks), default=0)
    step = WIDTH / max(1, len(points))
    bars: list[dict[str, Any]] = []
    for number, ((start, _tally), counts) in enumerate(zip(points, stacks, strict=True)):
        parts, below = [], 0
        for kind, count in zip(KINDS, counts, strict=True):
            if count:
                below += count
                place = step * (number + GAP / 2), HEIGHT * (1 - below / largest)
                size = step * (1 - GAP), HEIGHT * count / largest
                names = ("x", "y", "width", "height")
                lengths = [f"{length:.2f}" for length in (*place, *size)]
                parts.append({"kind": kind, **dict(zip(names, lengths, strict=True))})
        when = date_format(template_localtime(start), form)
        bars.append({"when": when, "counts": counts, "parts": parts})
    return {
        "bars": bars,
        "rows": [bar for bar in reversed(bars) if any(bar["counts"])],
        "labels": list(KINDS.items()),
        "largest": largest,
        "marks": marks([start for start, _tally in points], workers),
        "width": WIDTH,
        "height": HEIGHT,
    }


def marks(starts: Sequence[datetime], workers: Sequence[Worker]) -> list[dict[str, str]]:
    """
    Return a mark for each bar in whose time workers started, which names up to NAMED of them: by
    the release of the site where that is known.
    """
    started: dict[int, set[str]] = {}
    for worker in workers:
        if starts and worker.started_at >= starts[0]:
            words = {"worker": str(worker), "generation": worker.generation}
            place = bisect_right(starts, worker.started_at) - 1
            label = gettext("%(worker)s, generation %(generation)d") % words
            if worker.release:
                label = gettext("release %s") % worker.release
            started.setdefault(place, set()).add(label)
    found = []
    for place, labels in sorted(started.items()):
        when = date_format(template_localtime(starts[place]), "H:i")
        more = [f"+{len(labels) - NAMED}"] if len(labels) > NAMED else []
        label = f"{when}: {'; '.join([*sorted(labels)[:NAMED], *more])}"
        x = f"{WIDTH / len(starts) * place:.2f}"
        found.append({"x": x, "label": printable(label)})
    return found
