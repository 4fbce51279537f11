"""What a queue has, as a line of a table: on the overview, and on the page of queues."""

from __future__ import annotations

from urllib.parse import urlencode

from django.utils.formats import number_format

from django_perfectqueue.health.queues import QueueFigures
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.store.records.counts import COUNTED

from .base import AtLeast, bounded, whole
from .cells import NOTHING, duration, with_sign


def queue_row(queue: QueueFigures) -> dict[str, object]:
    """Return a queue as the tables show it."""
    names = ("running", "stalled", "scheduled", "retrying", "blocked")
    counts = {name: counted(queue, getattr(queue, name)) for name in names}
    growth = None if queue.growth_a_minute is None else round(queue.growth_a_minute)
    return {
        "figures": queue,
        "name": queue.name,
        "label": printable(queue.name),
        "query": urlencode({"queue": queue.name}),
        "counts": {
            **counts,
            "waiting": bounded(queue.waiting, COUNTED),
            "failed": whole(queue.failed_last_hour),
        },
        "oldest": duration(queue.oldest),
        "drained_in": duration(queue.drained_in) if queue.drained_in else NOTHING,
        "growth": NOTHING
        if growth is None
        else with_sign(round(growth), whole(round(abs(growth)))),
        "rate": number_format(queue.finished_a_minute, 1),
        "unknown_types": [printable(type_) for type_ in queue.unknown_types],
    }


def counted(queue: QueueFigures, count: int) -> object:
    """Return a count; where not all were counted, of none it is not known if there are any."""
    if not queue.is_bounded:
        return bounded(count, COUNTED)
    return AtLeast(count) if count else NOTHING
