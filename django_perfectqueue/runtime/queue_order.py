"""In which order a processor tries its queues: the setting QUEUE_ORDER."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import cycle, repeat


def orders(order: str, queues: Sequence[str]) -> Iterator[Sequence[str]]:
    """
    Yield the queues for each acquire: as they were given, beginning one further each time,
    or at random. These are the reservers of qless.
    """
    if order == "round_robin":
        return cycle([(*queues[n:], *queues[:n]) for n in range(len(queues))])
    if order == "shuffled":
        return (random.sample(queues, len(queues)) for _turn in repeat(None))
    return repeat(queues)
