"""Who looks after what a processor holds while it can't."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from django_perfectqueue import store

from ..database.link import Link
from ..plan import Plan
from ..process.cpu_usage import Gauge
from ..shared.slot import Slate
from ..shared.wakeups import Belfry

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

    def __init__(self, plan: Plan, belfry: Belfry, link: Link) -> None:
        self.using = plan.using
        self.alive_time = plan.options.ALIVE_TIME
        self.interval = plan.options.TASK_HEARTBEAT_INTERVAL
        self.pause = min(LONGEST_SILENCE, self.alive_time / (2 * RENEWALS))
        self.slates = [slate for slate, _bell in belfry.bells]
        self.link = link
        self.absent: dict[int, Absence] = {}

    def look(self) -> None:
        """Do what there is to be done now; to be called every ``pause`` seconds."""
        now = time.monotonic()
        for place, slate in enumerate(self.slates):
            if self.is_absent(place, slate, now):
                self.stand_in(self.absent[place], slate, now)

    def is_absent(self, place: int, slate: Slate, now: float) -> bool:
        """Tell whether a processor computes, and its keeper has not been at work since long."""
        silent = slate.pid and slate.begun and now - slate.beat_at >= self.pause
        known = self.absent.get(place)
        if not silent or (known and known.holder != slate.holder):
            self.absent.pop(place, None)
            return False
        if known is None:
            self.absent[place] = Absence(slate.holder, Gauge(slate.pid, now))
            return False
        return known.gauge.is_busy(now)

    def stand_in(self, absence: Absence, slate: Slate, now: float) -> None:
        since_renewal = now - slate.renewed_at
        # What may have lapsed by now may be another's: it is not for us to say that it is held.
        if self.alive_time / RENEWALS <= since_renewal < self.alive_time:
            self.renew(absence, slate)
        if slate.was_called or now - absence.looked_at >= self.interval:
            absence.looked_at = now
            slate.answer()
            self.see_to_cancels(absence.holder, slate)

    def renew(self, absence: Absence, slate: Slate) -> None:
        before = time.monotonic()
        terms = {"using": self.using, "alive_time": self.alive_time}
        self.link.insist(lambda: store.renew(absence.holder, **terms))  # type: ignore[arg-type]
        if slate.holder == absence.holder:
            slate.renewed_at = max(slate.renewed_at, before)
        if not absence.told:
            absence.told = True
            logger.warning(
                "A handler keeps Python's lock; its lease is renewed from outside. pid=%s"
                " task_ids=%s",
                slate.pid,
                [begun.task_id for begun in slate.begun],
            )

    def see_to_cancels(self, holder: int, slate: Slate) -> None:
        """Note who is to end, so that the supervisor ends it by force when it does not."""
        ids = [begun.task_id for begun in slate.begun]
        wanted = self.link.insist(lambda: store.wanted(holder, ids, using=self.using))
        if slate.holder == holder:
            for task_id in set(ids) - wanted:
                slate.told(task_id, time.monotonic())
