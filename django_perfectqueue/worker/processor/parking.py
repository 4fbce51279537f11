"""Park tasks of unknown types until a worker that knows them comes."""

from __future__ import annotations

import logging
import time

from django_perfectqueue import store
from django_perfectqueue.application.dispatch import in_words
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import PARKED_FROM

from ..plan import Plan
from .leases import Leases

logger = logging.getLogger("django_perfectqueue.processor")

MOST_TYPES = 1_000
STAND_BACK = 0.1


class Parking:
    """
    Parks tasks whose types no handler of this worker knows, and unparks those that it knows.

    Workers that do not know the types park them again. So this one looks after each
    acquire that took nothing, and for RETRY_WAIT after a find before each acquire. The
    processor acquires nothing before ``take_at``, of the monotonic clock.
    """

    def __init__(self, plan: Plan, leases: Leases) -> None:
        self.plan = plan
        self.leases = leases
        self.strange: list[store.Lease] = []
        self.warned_types: set[str] = set()
        self.position = PARKED_FROM
        self.look_until = 0.0
        self.take_at = 0.0

    def sort(self, taken: list[store.Lease]) -> list[store.Lease]:
        """Return the tasks of known types; keep the others to park, and stand back if all are."""
        knows = self.plan.dispatch.knows
        unknown = {type_ for type_ in {lease.type for lease in taken} if not knows(type_)}
        if not unknown:
            return taken
        for type_ in sorted(unknown - self.warned_types):
            self.warn(type_)
        self.strange += [lease for lease in taken if lease.type in unknown]
        known = [lease for lease in taken if lease.type not in unknown]
        if not (known or self.leases.hand.batch):
            # Otherwise this worker would take them again before a worker that knows them.
            self.take_at = time.monotonic() + STAND_BACK
        return known

    def park(self) -> None:
        """Park the tasks of unknown types; to repeat it does no harm."""
        if self.strange:
            # If this process dies before store.park(), the tasks are due again after RETRY_WAIT.
            self.leases.release(self.strange, delay=self.plan.options.RETRY_WAIT)
            store.park(self.strange, self.plan.dispatch.knows, using=self.plan.using)
            self.strange.clear()

    def warn(self, type_: str) -> None:
        """Log an unknown type once; the memory of logged types is limited."""
        if len(self.warned_types) >= MOST_TYPES:
            self.warned_types.clear()
        self.warned_types.add(type_)
        near = nearest(type_, map(in_words, self.plan.dispatch.load()))
        logger.warning(
            "No handler for tasks of this type; they wait.%s type=%s", near, printable(type_)
        )

    def unpark(self, now: float) -> bool:
        """Unpark some tasks of known types that other workers parked; return whether any."""
        knows, using = self.plan.dispatch.knows, self.plan.using
        self.position, count = store.unpark_some(knows, using=using, after=self.position)
        if count:
            self.look_until = now + self.plan.options.RETRY_WAIT
        return count > 0
