"""The leases of a processor: renewed, cancelled, lost; tasks of unknown types are parked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django_perfectqueue import signals, store
from django_perfectqueue.application.dispatch import in_words
from django_perfectqueue.exceptions import CancelRequestedError, PreemptedError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import PARKED_FROM
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.store.claims.limited import unlimited
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.store.tasks.park import unpark_some

from ..attempt.surroundings import Running, announce
from ..buffers import Hand
from ..plan import Plan
from ..process.signals import Wakeup
from ..shared.queue_order import QueueAccounts
from ..shared.status import RENEWALS, ProcessorStatus, Wakeups

logger = logging.getLogger("django_perfectqueue.monitor")

UNCERTAIN = store.Failure(error="lost", message="The answer to its acquire was lost.")


class Leases:
    """
    Keeps the leases of one processor alive.

    All are renewed together when a third of ALIVE_TIME has passed, so short tasks cost no
    heartbeat. While a task runs, a query every TASK_HEARTBEAT_INTERVAL looks for cancel
    requests; it runs at once when ``status.called`` is set.
    """

    def __init__(self, hand: Hand, plan: Plan, resources: ProcessorResources, worker: str) -> None:
        self.hand = hand
        self.plan = plan
        self.status = resources.status
        self.worker = worker
        self.alive_time = plan.options.ALIVE_TIME
        self.interval = plan.options.TASK_HEARTBEAT_INTERVAL
        self.looked_at = 0.0
        self.held_until = 0.0

    def due_call(self, now: float) -> Callable[[], None] | None:
        """Return the heartbeat that is due, if any."""
        held = self.hand.leases()
        if held and now - self.status.renewed_at >= self.alive_time / RENEWALS:
            return lambda: self.heartbeat(held, self.alive_time)
        if held and self.status.called:
            return lambda: self.heartbeat(held, None)
        running = self.hand.running()
        if overrun := [one for one in running if one.has_overrun(now)]:
            return lambda: self.charge(overrun)
        if held and running:
            since = max(self.looked_at, min(one.task.started for one in running))
            if now - since >= self.interval:
                return lambda: self.heartbeat(held, None)
        return None

    def charge(self, overrun: list[Running]) -> None:
        """Charge the users of running tasks that take longer than they were charged for."""
        ran = {one.task.lease: one.task.seconds for one in overrun}
        store.leases.charge(ran, using=self.plan.using)
        for one, seconds in zip(overrun, ran.values(), strict=True):
            one.charged = seconds

    def heartbeat(self, held: list[store.Lease], alive_time: float | None) -> None:
        before = time.monotonic()
        self.looked_at = before
        self.status.called = False
        using = self.plan.using
        pulses = store.leases.heartbeat(held, using=using, alive_time=alive_time)
        if alive_time is not None:
            self.status.renewed_at = max(self.status.renewed_at, before)
        answers = list(zip(held, pulses, strict=True))
        for lease in [lease for lease, pulse in answers if not pulse.held]:
            runs = self.hand.attempt(lease) is not None
            self.lost(lease, store.leases.refusal(lease, using=using) if runs else None)
        for lease in [lease for lease, pulse in answers if pulse.held and pulse.cancel_requested]:
            self.cancelled(lease)

    def release_rest(self) -> None:
        """Release the tasks that have not started; after an error, they are released again."""
        if rest := self.hand.lay_aside():
            self.release(rest)
            self.hand.releasing.clear()

    def release(self, leases: Sequence[store.Lease], *, delay: float = 0.0) -> None:
        """Give leases back; their tasks are due again after ``delay`` seconds."""
        words = store.settle(leases, store.Ending.release(delay), using=self.plan.using)
        cancelled = [lease for lease, word in words.items() if word == "cancelled"]
        store.notify.announce(signals.task_cancelled, cancelled, using=self.plan.using)
        self.status.count("released", len(words))

    def give_back_uncertain(self, kept: set[tuple[int, int]]) -> None:
        """
        After an outage, release leases whose acquire got no answer, and interrupt attempts
        whose leases a crashed server has lost.

        ``kept`` are the fences of the leases that the processor knows of.
        """
        store.upkeep.give_back(
            self.status.holder,
            using=self.plan.using,
            alive_time=self.alive_time,
            keep=kept,
            loss=Loss(why=UNCERTAIN, worker=self.worker),
        )
        if held := self.hand.leases():
            self.heartbeat(held, None)

    def have_expired(self, now: float) -> bool:
        """Return whether the leases have certainly expired, by this host's clock."""
        late = now - self.status.renewed_at >= self.alive_time
        return late and bool(self.hand.leases()) and not self.is_alone()

    def is_alone(self) -> bool:
        """Return whether a handler holds the only write lock, so that no lease can be taken."""
        return any(one.alone for one in self.hand.running())

    def preempt_all(self) -> None:
        for lease in self.hand.leases():
            self.lost(lease)

    def lost(self, lease: store.Lease, reason: PreemptedError | None = None) -> None:
        if reason is None:
            reason = PreemptedError(f"Task '{lease.key}' is no longer held: its lease expired.")
        if self.interrupt_or_drop(lease, reason):
            logger.warning("A task lost its lease before it ran. key=%s", printable(lease.key))

    def cancelled(self, lease: store.Lease) -> None:
        reason = CancelRequestedError(f"Task '{lease.key}' is to be cancelled.")
        if self.interrupt_or_drop(lease, reason):
            self.cancel(lease)

    def interrupt_or_drop(self, lease: store.Lease, reason: BaseException) -> bool:
        """
        Interrupt a handler unless it has settled its task since the query, or is settling
        it: the store's answer then raises the error. Where it has yet to begin, take it out of
        the batch, and return True.
        """
        running = self.hand.attempt(lease)
        if running is None:
            return self.hand.drop(lease)
        if not (running.task.settled or running.task.is_settling):
            self.interrupt(running, reason)
        return False

    def interrupt(self, running: Running, reason: BaseException) -> None:
        """Interrupt a handler; the supervisor kills the processor if that does not end it."""
        if running.active:
            self.status.ask_to_stop(running.task.lease.task_id, time.monotonic())
            running.kill(reason)

    def cancel(self, lease: store.Lease) -> None:
        """Cancel a task of the batch; when the database fails, its release does it later."""
        using, worker = self.plan.using, self.worker
        try:
            words = store.settle(
                [lease], store.Ending.cancel(), seconds=0.0, using=using, worker=worker
            )
        except BaseException:
            self.hand.releasing.append(lease)
            raise
        if lease not in words:
            logger.warning("A task lost its lease before it ran. key=%s", printable(lease.key))
        else:
            self.status.count("cancelled")
            task = AcquiredTask(lease)
            task.settled = "cancelled"
            announce(task.settled, task, self.plan.handler_for(lease))


# Park tasks of unknown types until a worker that knows them comes.


processor_logger = logging.getLogger("django_perfectqueue.processor")

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
        self.warned_names: set[str] = set()
        self.position = PARKED_FROM
        self.look_until = 0.0
        self.take_at = 0.0

    def sort(self, taken: list[store.Lease]) -> list[store.Lease]:
        """Return the tasks of known types; keep the others to park, and stand back if all are."""
        if listing := [lease for lease in taken if lease.limits]:
            for name in news(self.warned_names, unlimited(listing)):
                text = "A task lists a limit that does not exist, so it is not limited. limit=%s"
                processor_logger.warning(text, printable(name))
        knows = self.plan.dispatch.knows
        unknown = {type_ for type_ in {lease.type for lease in taken} if not knows(type_)}
        if not unknown:
            return taken
        for type_ in news(self.warned_types, unknown):
            near = nearest(type_, map(in_words, self.plan.dispatch.load()))
            text = "No handler for tasks of this type; they wait.%s type=%s"
            processor_logger.warning(text, near, printable(type_))
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

    def unpark(self, now: float) -> bool:
        """Unpark some tasks of known types that other workers parked; return whether any."""
        knows, using = self.plan.dispatch.knows, self.plan.using
        self.position, count = unpark_some(knows, using=using, after=self.position)
        if count:
            self.look_until = now + self.plan.options.RETRY_WAIT
        return count > 0


def news(known: set[str], found: set[str]) -> list[str]:
    """Return what was not known, and note it, so that it is logged once; the memory is limited."""
    new = sorted(found - known)
    if len(known) >= MOST_TYPES:
        known.clear()
    known.update(new)
    return new


# What a supervisor gives a processor.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorResources:
    """The resources that a supervisor gives a processor, and keeps when it dies."""

    status: ProcessorStatus
    wakeup: Wakeup
    heartbeat_w: int
    parent_alive: int
    wakeups: Wakeups = field(default_factory=Wakeups)
    accounts: QueueAccounts | None = None
