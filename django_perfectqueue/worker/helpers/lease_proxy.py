"""Renew the leases of a processor that can't do so itself."""

from __future__ import annotations

import logging
import time

from django_perfectqueue import store

from ..plan import Plan
from ..shared.slot import RENEWALS, Slot
from ..shared.wakeups import Wakeups

logger = logging.getLogger("django_perfectqueue.janitor")

LONGEST_SILENCE = 2.0
RECENTLY = 2.0


class LeaseProxy:
    """
    Renews the leases of processors whose handlers hold the interpreter lock.

    C code that never releases the lock also stops the monitor thread. While the supervisor
    sees that the processor computes, the proxy renews its leases and notices cancel
    requests. A processor that does not compute loses its leases.
    """

    def __init__(self, plan: Plan, wakeups: Wakeups) -> None:
        self.using = plan.using
        self.alive_time = plan.options.ALIVE_TIME
        self.interval = plan.options.TASK_HEARTBEAT_INTERVAL
        self.pause = min(LONGEST_SILENCE, self.alive_time / (2 * RENEWALS))
        self.slots = [slot for slot, _wakeup in wakeups.processors]

    def look(self) -> None:
        """Renew the leases that need it; to be called every ``pause`` seconds."""
        now = time.monotonic()
        for slot in self.slots:
            silent = slot.pid and now - slot.beat_at >= self.pause
            if silent and now - slot.computed_at <= RECENTLY and slot.tasks:
                self.stand_in(slot, slot.holder, now)

    def stand_in(self, slot: Slot, holder: int, now: float) -> None:
        # An expired lease may be another's by now, so it must not be renewed here.
        if self.alive_time / RENEWALS <= now - slot.renewed_at < self.alive_time:
            self.renew(slot, holder, now)
        if slot.called or now - slot.asked_at >= self.interval:
            slot.called, slot.asked_at = False, now
            self.note_cancels(slot, holder)

    def renew(self, slot: Slot, holder: int, now: float) -> None:
        store.renew(holder, using=self.using, alive_time=self.alive_time)
        # Another processor may use the slot by now.
        if slot.holder == holder:
            slot.renewed_at = max(slot.renewed_at, now)
        logger.warning(
            "A handler holds Python's lock; the janitor renews its lease. pid=%s task_ids=%s",
            slot.pid,
            [task.task_id for task in slot.tasks],
        )

    def note_cancels(self, slot: Slot, holder: int) -> None:
        """Record stop requests in the slot, which the supervisor enforces."""
        ids = [task.task_id for task in slot.tasks]
        wanted = store.wanted(holder, ids, using=self.using)
        if slot.holder == holder:
            for task_id in set(ids) - wanted:
                slot.ask_to_stop(task_id, time.monotonic())
