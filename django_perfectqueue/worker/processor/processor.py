"""The base of the processes that acquire and run tasks."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from django_perfectqueue import store
from django_perfectqueue.conf import FAIR
from django_perfectqueue.exceptions import (
    GracefulProcessStopError,
    ImmediateProcessStopError,
    PreemptedError,
    ProcessStopError,
)
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.tracing import otel

from ..attempt import log_capture
from ..attempt.ending import Ending, announce, announced
from ..attempt.runner import Running
from ..buffers.completions import Completions
from ..buffers.in_hand import InHand
from ..buffers.journal import JournalBuffer
from ..buffers.usage import UsageBuffer
from ..database.link import AwayError, Link
from ..plan import Plan, worker_name
from ..process.signals import REOPEN_LOGS, RESTART_NOW, STOP_NOW, take_signals
from ..report import Reporter
from ..shared.crowd import Crowd, account_of
from ..shared.queue_order import QueueAccounts, orders
from .leases import Leases
from .monitor import Monitor
from .parking import STAND_BACK, Parking
from .prefetch import Prefetch
from .recycling import Recycling
from .resources import ProcessorResources

logger = logging.getLogger("django_perfectqueue.processor")

DONE = 0
RECYCLED = 3
LAST_TRIES = 10.0
LOOK_UP_AFTER = 5.0
LOOK_AFTER = 60.0
WEIGHTS_AFTER = 5.0
LAST_LOOKS = 5
TOO_LONG = 1.0


class Processor:
    """
    Acquires due tasks in fair order and writes their outcomes.

    Subclasses run them: one by one, in threads or in an event loop. ``in_hand`` and
    ``running`` may be read from other threads, above all from the monitor.
    """

    def __init__(self, plan: Plan, resources: ProcessorResources, reporter: Reporter) -> None:
        self.plan = plan
        self.options = plan.options
        self.resources = resources
        self.reporter = reporter
        self.slot = resources.slot
        self.worker = worker_name()
        self.orders = orders(plan.options.QUEUE_ORDER, plan.queues)
        self.accounts = resources.accounts or QueueAccounts(plan.queues, plan.options.places)
        self.shares = plan.options.QUEUE_ORDER == FAIR and len(plan.queues) > 1
        self.weights_at = 0.0
        self.stopping = False
        self.stop_reason: type[ProcessStopError] | None = None
        self.remaining = plan.options.MAX_REQUEST_PER_CHILD
        self.recycling = Recycling(plan.options)
        slots = [slot for slot, _wakeup in resources.wakeups.processors]
        self.crowd = Crowd(slots, len(slots) * plan.options.places)
        self.in_hand = InHand(lambda: self.running, self.crowd, self.give_way)
        self.batch = self.in_hand.batch
        self.requested = 0
        self.taken_at = time.monotonic()
        self.rested = False
        self.found_few = False
        self.looks = 0
        self.prefetch = Prefetch(plan.options.TASK_PREFETCH, places=plan.options.places)
        self.completions = Completions(self.completions_written)
        self.link = Link(plan.using, resources.wakeup, self.patience, outage=plan.outage)
        self.link.returned = lambda: self.leases.give_back_uncertain(self.kept())
        self.aside = Link(plan.using, resources.wakeup, self.patience, outage=plan.outage)
        self.usage = UsageBuffer(using=plan.using, kept=plan.options.USAGE_TIME != 0)
        self.journal = JournalBuffer(
            self.in_hand.running, using=plan.using, interval=plan.options.JOURNAL_INTERVAL
        )
        self.leases = Leases(self.in_hand, plan, resources, self.worker)
        self.parking = Parking(plan, self.link, self.leases)
        self.report_lock = threading.Lock()
        self.monitor = Monitor(self, plan, self.leases, [self.link, self.aside], resources)

    def run(self) -> int:
        """Work until a stop, a recycling, or in a burst until nothing is due."""
        self.open()
        self.accounts.sign_on(time.monotonic())
        take_signals(self.on_signal)
        log_capture.begin(self.options.LOG_CAPTURE)
        self.plan.dispatch.after_fork()
        self.monitor.start()
        try:
            return self.work()
        except AwayError:
            return DONE
        finally:
            self.close()

    def on_signal(self, signum: int, frame: object) -> None:
        if signum == REOPEN_LOGS:
            self.monitor.logs_moved = True
        else:
            self.stop(now=signum in (STOP_NOW, RESTART_NOW))
        self.monitor.wakeup.wake()

    def stop(self, *, now: bool = False) -> None:
        """Acquire no more and end after the running task. For any thread; may be repeated."""
        if now or self.stop_reason is None:
            self.stop_reason = ImmediateProcessStopError if now else GracefulProcessStopError
        self.stopping = True
        self.resources.wakeup.wake()

    def patience(self) -> float:
        return LAST_TRIES if self.stopping else float("inf")

    def open(self) -> None:
        """Prepare in the new process."""

    def work(self) -> int:
        """Run tasks until the end; return the exit code."""
        raise NotImplementedError

    @property
    def running(self) -> list[Running]:
        """The attempts in progress; for any thread."""
        raise NotImplementedError

    def wanted(self) -> int:
        """Return how many tasks to acquire."""
        raise NotImplementedError

    def are_serial(self, count: int) -> bool:
        """Return whether ``count`` more tasks would run one after another."""
        raise NotImplementedError

    def renewed(self, at: float) -> None:
        """Record that an acquire at ``at`` gave new leases."""
        self.slot.renewed_at = at

    def remind(self) -> None:
        """Repeat an interrupt that did not reach the handler, where that can happen."""

    def is_busy(self) -> bool:
        return bool(self.running or self.batch or self.completions.waiting or self.journal.left)

    def is_spent(self) -> bool:
        """Return whether it must be replaced, for its count of tasks, age or memory."""
        spent = self.remaining is not None and self.remaining <= 0
        return spent or self.recycling.is_due()

    def serve(self) -> None:
        """Report the first acquire to the supervisor."""
        if not self.slot.serves:
            self.slot.serves = True
            self.monitor.beat_at_once()

    def acquire(self) -> list[store.Lease]:
        """Acquire tasks and write completions in one transaction."""
        if self.stopping:
            return []
        if self.usage.lacks_clock():
            self.usage.ask_time()
        rested, self.rested = self.rested, False
        limit = self.requested = self.wanted()
        taken = (self.lone_task(limit) if rested else []) or self.take_in_order(limit)
        self.found_few = rested and 0 < len(taken) < limit
        return taken

    def take_in_order(self, limit: int) -> list[store.Lease]:
        """Take tasks in fair order; write completions in the same transaction."""
        before = time.monotonic()
        if before < self.parking.look_until:
            self.parking.unpark(before)
        taken = self.claim(limit, before)
        self.renewed(before)
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
            serial=self.are_serial(limit),
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
        return self.accounts.order(now, [lease.queue for lease in list(self.batch)])

    def lone_task(self, limit: int) -> list[store.Lease]:
        """After idling, take a single task by the fast path."""
        if self.completions.waiting or len(self.plan.queues) > 1:
            return []
        before = time.monotonic()
        taken = store.take_alone(
            self.plan.queues[0],
            limit=limit,
            alive_time=self.options.ALIVE_TIME,
            holder=self.resources.holder,
            using=self.plan.using,
        )
        if taken:
            self.renewed(before)
        return taken

    def give_way(self) -> None:
        """Give back the batch, as the tasks of others are to come first."""
        self.link.insist(self.leases.release_rest)

    def note_begin(self, task: AcquiredTask, index: int = 0) -> None:
        """Record that the handler of a task begins."""
        lease = task.lease
        limits = self.plan.time_limits(lease)
        account = account_of(lease) if lease.lane & 1 else lease.lane
        whose = account, 0.0 if lease.is_new else lease.charge
        self.slot.begin(lease.task_id, since=task.started, limits=limits, index=index, whose=whose)
        if self.shares:
            self.accounts.begin(lease.queue, task.started, index)
        self.usage.begin(task)

    def note_end(self, task: AcquiredTask, seconds: float, index: int = 0) -> None:
        """Record the end of a task and its duration."""
        self.usage.end(task, task.started + seconds)
        if self.shares:
            self.accounts.end(task.lease.queue, seconds, index)
        self.slot.end(index=index)
        self.prefetch.ran(task.lease.type, seconds)
        if self.remaining is not None:
            self.remaining -= 1

    def is_last(self, taken: Sequence[store.Lease]) -> bool:
        """
        Return whether a burst is over: nothing was taken, and no idle lane has tasks.

        It wakes such lanes once, since another worker may have marked them by other settings.
        It acquires again at once what its own completions have made due, and polls a few
        times for tasks that others were about to make due.
        """
        if taken:
            self.looks = 0
            return False
        self.looks += 1
        if self.looks == 1 and self.link.insist(
            lambda: store.wake_forgotten_lanes(using=self.plan.using)
        ):
            return False
        if self.looks > LAST_LOOKS or not self.link.insist(self.look).due:
            return True
        if self.looks > 1:
            self.resources.wakeup.wait(STAND_BACK)
        return False

    def pass_on(self, taken: Sequence[store.Lease]) -> None:
        """
        Wake another processor if more tasks may be due: the batch is full, has tasks with a
        cap, or a wake-up came during the acquire, which may have missed its task.
        """
        self.slot.seeking = False
        capped = any(map(attrgetter("capped"), taken))
        if len(taken) >= self.requested or capped or self.slot.rung:
            self.resources.wakeups.wake_one()

    def look(self) -> store.Outlook:
        return store.look(self.plan.queues, using=self.plan.using)

    def write_completions(self) -> None:
        """Write the buffered completions."""
        if self.completions.waiting:
            with self.completions.batch() as batch:
                using, worker = self.plan.using, self.worker
                batch.refused += store.finish(batch.completions, using=using, worker=worker)

    def write_usage(self) -> None:
        """Write the buffered usage."""
        self.link.try_once(self.usage.write, "The usage")

    def write_notes(self, link: Link) -> None:
        """Write the journal over the link of this thread."""
        if not link.away_since:
            link.try_once(self.journal.write, "The journal of tasks")

    def background_call(self, now: float) -> Callable[[], object] | None:
        """Return the call that is due while handlers run, if any."""
        running = self.running
        if not running:
            # A successful call ends the outage of ``aside``, which is logged then.
            return self.look if self.aside.away_since else None
        if self.usage.is_overdue(now):
            return self.usage.write
        began = max(one.task.started for one in running)
        if self.batch and self.should_give_back(now - began):
            return self.leases.release_rest
        if self.completions.is_late(now):
            return self.write_completions
        return None

    def should_give_back(self, seconds: float) -> bool:
        """Return whether to release the batch, which waits behind a long task."""
        return self.stopping or (self.prefetch.fixed is None and seconds >= TOO_LONG)

    def journal_call(self, now: float) -> Callable[[], object] | None:
        """Return the call that writes the journal, if it is due."""
        return partial(self.write_notes, self.aside) if self.journal.is_due(now) else None

    def write_last_notes(self) -> None:
        """Write the journal of tasks whose completions were just written."""
        if self.journal.left:
            self.write_notes(self.link)

    def completions_written(self, endings: Sequence[Ending]) -> None:
        heard = announced(endings)
        for ending in endings:
            if ending.word == "preempted":
                logger.warning("A result came too late. key=%s", printable(ending.task.key))
            if (ending.word, ending.handler) in heard:
                announce(ending.word, ending.task, ending.handler)
        self.report(endings)

    def report(self, endings: Sequence[Ending]) -> None:
        for word, count in Counter([ending.word for ending in endings]).items():
            self.slot.count(word, count)
        self.usage.count(endings)
        for ending in endings:
            if ending.task.notes is not None:
                self.journal.keep(ending.task)
        with self.report_lock:
            self.reporter.print_tasks(endings)

    def kept(self) -> set[tuple[int, int]]:
        """Return the fences of all leases that this processor knows of."""
        return {lease.fence for lease in self.in_hand.leases()} | self.completions.fences()

    def close(self) -> None:
        """Release the batch, write all buffers and stop the threads."""
        self.stop()
        self.slot.seeking = False
        for act in (self.leases.release_rest, self.write_completions):
            try:
                self.link.insist(act)
            except (AwayError, PreemptedError):
                logger.error("The database is away; tasks run again when their leases expire.")
        if not self.link.away_since:
            self.write_usage()
        self.monitor.stop()
        self.journal.hurry()
        self.write_last_notes()
        log_capture.end()
        self.plan.dispatch.after_child_end()
        if self.options.TRACING:
            otel.flush()
        self.slot.signed_off = True
        logger.debug("A processor ends. pid=%s", os.getpid())
