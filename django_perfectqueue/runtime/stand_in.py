"""Who looks after what a processor holds while it can't."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from django_perfectqueue import store

from .belfry import Wakeups
from .database import Link
from .gauge import Gauge
from .plan import Plan
from .slate import Slot

logger = logging.getLogger("django_perfectqueue.janitor")

RENEWALS = 3
LONGEST_SILENCE = 2.0


@dataclass(slots=True)
class Absence:
    """A processor whose keeper is not at work, since that was seen."""

    holder: int
    gauge: Gauge
    looked_at: float = 0.0
    told: bool = False


class StandIn:
    """
    Renews the leases of processors whose handlers keep Python's lock, and tells them apart
    from those that stand still.

    Code in C that never lets go of the lock stops the keeper as well as everything else in
    its process. As long as it computes it counts as at work: what it holds is renewed from
    here, and a cancel is seen to. What stands still is left to its supervisor.
    """

    def __init__(self, plan: Plan, wakeups: Wakeups, link: Link) -> None:
        self.using = plan.using
        self.alive_time = plan.options.ALIVE_TIME
        self.interval = plan.options.TASK_HEARTBEAT_INTERVAL
        self.pause = min(LONGEST_SILENCE, self.alive_time / (2 * RENEWALS))
        self.slots = [slot for slot, _bell in wakeups.bells]
        self.link = link
        self.absent: dict[int, Absence] = {}

    def look(self) -> None:
        """Do what there is to be done now; to be called every ``pause`` seconds."""
        now = time.monotonic()
        for place, slot in enumerate(self.slots):
            if self.is_absent(place, slot, now):
                self.stand_in(self.absent[place], slot, now)

    def is_absent(self, place: int, slot: Slot, now: float) -> bool:
        """Tell whether a processor computes, and its keeper has not been at work since long."""
        silent = slot.pid and slot.tasks and now - slot.beat_at >= self.pause
        known = self.absent.get(place)
        if not silent or (known and known.holder != slot.holder):
            self.absent.pop(place, None)
            return False
        if known is None:
            self.absent[place] = Absence(slot.holder, Gauge(slot.pid, now))
            return False
        return known.gauge.is_busy(now)

    def stand_in(self, absence: Absence, slot: Slot, now: float) -> None:
        since_renewal = now - slot.renewed_at
        # What may have lapsed by now may be another's: it is not for us to say that it is held.
        if self.alive_time / RENEWALS <= since_renewal < self.alive_time:
            self.renew(absence, slot)
        if slot.called or now - absence.looked_at >= self.interval:
            absence.looked_at = now
            slot.called = False
            self.see_to_cancels(absence.holder, slot)

    def renew(self, absence: Absence, slot: Slot) -> None:
        before = time.monotonic()
        terms = {"using": self.using, "alive_time": self.alive_time}
        self.link.insist(lambda: store.renew(absence.holder, **terms))  # type: ignore[arg-type]
        if slot.holder == absence.holder:
            slot.renewed_at = max(slot.renewed_at, before)
        if not absence.told:
            absence.told = True
            logger.warning(
                "A handler keeps Python's lock; its lease is renewed from outside. pid=%s"
                " task_ids=%s",
                slot.pid,
                [begun.task_id for begun in slot.tasks],
            )

    def see_to_cancels(self, holder: int, slot: Slot) -> None:
        """Note who is to end, so that the supervisor ends it by force when it does not."""
        ids = [begun.task_id for begun in slot.tasks]
        wanted = self.link.insist(lambda: store.wanted(holder, ids, using=self.using))
        if slot.holder == holder:
            for task_id in set(ids) - wanted:
                slot.ask_to_stop(task_id, time.monotonic())
