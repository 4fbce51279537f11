"""What users were entitled to, and how long tasks waited: arithmetic, with no database in sight."""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from django_perfectqueue.models import WAIT_BUCKETS

K = TypeVar("K", bound=Hashable)

# Two to this power is the upper bound, in seconds, of the first bucket.
FASTEST = -9


@dataclass(frozen=True, slots=True)
class Contender:
    """
    What a user received; ``eager`` means that it would have taken more, up to ``most``.
    """

    received: float
    weight: float
    eager: bool
    most: float = math.inf

    def want(self, all_of_it: float) -> float:
        """Return how much of all that there is it would have taken."""
        return max(self.received, min(all_of_it, self.most)) if self.eager else self.received


def entitlements(contenders: Mapping[K, Contender]) -> dict[K, float]:
    """
    Return what each was entitled to of what all received together.

    By weight, but for one that wanted less than that: it is entitled to what it wanted,
    and the others share the rest (max-min fairness; Bertsekas and Gallager, Data Networks,
    1987). An eager one wants everything, or as much as its cap allows; any other just
    what it received.
    """
    rest = math.fsum(one.received for one in contenders.values())
    wants = {key: one.want(rest) for key, one in contenders.items()}
    order = sorted(contenders, key=lambda key: wants[key] / contenders[key].weight)
    left = [*accumulate(contenders[key].weight for key in reversed(order))]
    entitled: dict[K, float] = {}
    for key, weights in zip(order, reversed(left), strict=True):
        entitled[key] = min(wants[key], rest * (contenders[key].weight / weights))
        rest = max(0.0, rest - entitled[key])
    return entitled


# The upper bounds of the buckets in seconds; the last bucket has none.
BOUNDS = tuple(2.0 ** (FASTEST + number) for number in range(WAIT_BUCKETS - 1))

# Return the number of the bucket that counts so many seconds.
bucket_of = functools.partial(bisect_right, BOUNDS)


def percentile(buckets: Sequence[int], part: float, longest: float = math.inf) -> float | None:
    """
    Return the wait in seconds that this part of all were not longer than; None without any.

    It is taken to lie in its bucket as the logarithms of waits would, if they were spread
    evenly, and is never more than the ``longest`` wait. For the last bucket its lower bound
    is returned.
    """
    total = sum(buckets)
    if not total:
        return None
    rank, before = part * total, 0
    for number, count in enumerate(buckets):
        if count and before + count >= rank:
            return min(longest, within(number, max(0.0, (rank - before) / count)))
        before += count
    raise AssertionError("The last bucket with waits reaches the total.")


def within(number: int, place: float) -> float:
    """Return the wait at a place of a bucket, 0 being its beginning and 1 its end."""
    if number == 0:
        return float(2.0**FASTEST * place)
    if number == WAIT_BUCKETS - 1:
        place = 0.0
    return float(2.0 ** (FASTEST + number - 1 + place))
