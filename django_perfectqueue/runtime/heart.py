"""Heartbeats: renew what a processor holds, and learn what it has to give up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_perfectqueue import store
from django_perfectqueue.exceptions import CancelRequestedError, PreemptedError
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.texts import printable

from .ending import announce
from .runner import Running

if TYPE_CHECKING:
    from .processor import Processor

logger = logging.getLogger("django_perfectqueue.keeper")

RENEWALS = 3


class Heart:
    """
    Keeps the leases of one processor alive.

    All are renewed together when a third of ALIVE_TIME has passed; so tasks that are
    short cost no heartbeat. One that runs for longer than TASK_HEARTBEAT_INTERVAL is
    looked after that often, in case it is to be cancelled, and at once when there is a
    call: someone has asked for that.
    """

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.alive_time = processor.options.ALIVE_TIME
        self.interval = processor.options.TASK_HEARTBEAT_INTERVAL
        self.slot = processor.slot
        self.looked_at = 0.0

    @property
    def renewed_at(self) -> float:
        """When the leases were last renewed, by this process or in its stead."""
        return self.slot.renewed_at

    @renewed_at.setter
    def renewed_at(self, moment: float) -> None:
        self.slot.renewed_at = moment

    def held(self) -> list[store.Lease]:
        """Return the leases of what is running and of what is to run next."""
        running = self.processor.running
        own = [one.task.lease for one in running if not one.task.settled]
        return own + list(self.processor.batch)

    def errand(self, now: float) -> Callable[[], None] | None:
        """Return what has to be asked of the database now, if anything."""
        held = self.held()
        if held and now - self.renewed_at >= self.alive_time / RENEWALS:
            return lambda: self.beat(held, self.alive_time)
        if held and self.slot.called:
            return lambda: self.beat(held, None)
        running = self.processor.running
        if held and running:
            since = max(self.looked_at, min(one.task.started for one in running))
            if now - since >= self.interval:
                return lambda: self.beat(held, None)
        return None

    def beat(self, held: list[store.Lease], alive_time: float | None) -> None:
        before = time.monotonic()
        self.looked_at = before
        self.slot.called = False
        using = self.processor.plan.using
        pulses = store.heartbeat(held, using=using, alive_time=alive_time)
        if alive_time is not None:
            self.renewed_at = max(self.renewed_at, before)
        told = list(zip(held, pulses, strict=True))
        for lease in [lease for lease, pulse in told if not pulse.held]:
            self.lost(lease, store.refusal(lease, using=using) if self.running(lease) else None)
        for lease in [lease for lease, pulse in told if pulse.held and pulse.cancel_requested]:
            self.cancelled(lease)

    def have_lapsed(self, now: float) -> bool:
        """Tell whether the leases have run out for sure, whatever the database would say."""
        late = now - self.renewed_at >= self.alive_time
        return late and bool(self.held()) and not self.is_alone()

    def is_alone(self) -> bool:
        """Tell whether nobody could take anything, or be told, for a handler has the only lock."""
        return any(one.alone for one in self.processor.running)

    def is_behind(self, now: float) -> bool:
        """Tell whether what is held should have been renewed long ago, but was not."""
        late = now - self.renewed_at >= 2 * self.alive_time / RENEWALS
        return late and bool(self.held())

    def lapse(self) -> None:
        for lease in self.held():
            self.lost(lease)

    def lost(self, lease: store.Lease, reason: PreemptedError | None = None) -> None:
        if reason is None:
            reason = PreemptedError(f"Task '{lease.key}' is no longer held: its lease ran out.")
        running = self.running(lease)
        if running is not None:
            self.tell_unsettled(running, reason)
        elif self.processor.drop(lease):
            logger.warning("A task was taken away before it ran. key=%s", printable(lease.key))

    def cancelled(self, lease: store.Lease) -> None:
        running = self.running(lease)
        if running is not None:
            reason = CancelRequestedError(f"Task '{lease.key}' is to be cancelled.")
            self.tell_unsettled(running, reason)
        elif self.processor.drop(lease):
            self.cancel(lease)

    def tell_unsettled(self, running: Running, reason: BaseException) -> None:
        """
        Have a handler end, unless it has settled its task since the database was asked, or is
        about to: it then learns from the store's answer what has become of it.
        """
        if not (running.task.settled or running.task.is_settling):
            self.tell(running, reason)

    def tell(self, running: Running, reason: BaseException) -> None:
        """Have a handler end, by force if it does not in time."""
        if running.active:
            self.slot.ask_to_stop(running.task.lease.task_id, time.monotonic())
            running.kill(reason)

    def cancel(self, lease: store.Lease) -> None:
        """Cancel what has yet to run; one that can't be cancelled now stays in hand."""
        using, worker = self.processor.plan.using, self.processor.worker
        try:
            store.cancel(lease, seconds=0.0, using=using, worker=worker)
        except PreemptedError:
            logger.warning("A task was taken away before it ran. key=%s", printable(lease.key))
        except BaseException:
            self.processor.hold_again([lease])
            raise
        else:
            self.processor.slot.count("cancelled")
            task = AcquiredTask(lease)
            task.settled = "cancelled"
            announce(task.settled, task, self.processor.plan.handler_for(lease))

    def running(self, lease: store.Lease) -> Running | None:
        for one in self.processor.running:
            if one.task.lease.fence == lease.fence:
                return one
        return None
