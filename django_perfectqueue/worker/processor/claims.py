"""Claim tasks for a processor, and write its completions in the same transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django_perfectqueue import store

from ..shared.queue_order import orders
from .parking import Parking

if TYPE_CHECKING:
    from .processor import Processor

WEIGHTS_AFTER = 5.0


class Claims:
    """The claims of a processor: of which queues, in which order, and with what completions."""

    def __init__(self, processor: Processor, parking: Parking) -> None:
        self.plan, self.options = processor.plan, processor.options
        self.resources = processor.resources
        self.hand, self.completions = processor.hand, processor.completions
        self.crowd, self.prefetch = processor.crowd, processor.prefetch
        self.accounts, self.shares = processor.accounts, processor.shares
        self.worker = processor.worker
        self.parking = parking
        self.orders = orders(self.options.QUEUE_ORDER, self.plan.queues)
        self.weights_at = 0.0

    def lone_task(self, limit: int) -> list[store.Lease]:
        """After idling, take a single task by the fast path."""
        if self.completions.waiting or len(self.plan.queues) > 1:
            return []
        return store.take_alone(
            self.plan.queues[0],
            limit=limit,
            alive_time=self.options.ALIVE_TIME,
            holder=self.resources.holder,
            using=self.plan.using,
        )

    def take_in_order(self, limit: int) -> list[store.Lease]:
        """Take tasks in fair order; write completions in the same transaction."""
        before = time.monotonic()
        if before < self.parking.look_until:
            self.parking.unpark(before)
        taken = self.claim(limit, before)
        return taken if taken or not self.parking.unpark(before) else self.take_in_order(limit)

    def claim(self, limit: int, now: float) -> list[store.Lease]:
        """Write completions, and take tasks in fair order, in one transaction."""
        order = self.queues_in_order(now)
        crowd = self.crowd
        if crowd.processors:
            crowd.look(now)
        request = store.ClaimRequest(
            queues=order,
            limit=limit,
            alive_time=self.options.ALIVE_TIME,
            holder=self.resources.holder,
            using=self.plan.using,
            serial=self.hand.places == 1 or limit > len(self.hand.free),
            processors=crowd.processors,
            overrun=crowd.overrun,
        )
        with self.completions.batch() as batch:
            taken, refused = store.finish_and_acquire(
                batch.completions, request, worker=self.worker
            )
            batch.refused += refused
        self.prefetch.took(taken)
        if self.shares:
            queues = [lease.queue for lease in taken]
            self.accounts.took(order, queues, limit, time.monotonic())
        return taken

    def queues_in_order(self, now: float) -> Sequence[str]:
        """Return the order of queues for this acquire; reread their weights every 5 s."""
        if not self.shares:
            return next(self.orders)
        if now >= self.weights_at:
            self.accounts.weights = store.queue_weights(self.plan.queues, using=self.plan.using)
            self.weights_at = now + WEIGHTS_AFTER
        return self.accounts.order(now, [lease.queue for lease in list(self.hand.batch)])
