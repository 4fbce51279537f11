"""What the threads of a processor share: the tasks in hand, what is to be written, why it ends."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence

from django_perfectqueue import exceptions, store
from django_perfectqueue.conf import FAIR
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import AcquiredTask

from ..attempt.event_loop import EventLoop
from ..attempt.surroundings import AttemptEnd, Running, announce, announced
from ..buffers import LATE, Completions, Hand, JournalBuffer, UsageBuffer
from ..database.link import Link, Watchdog
from ..plan import Plan, worker_name
from ..process.signals import Wakeup
from ..report import Reporter
from ..shared.queue_order import QueueAccounts
from ..shared.status import Crowd, account_of
from .leases import Leases, Parking, ProcessorResources
from .pacing import MOST, Prefetch, Recycling

logger = logging.getLogger("django_perfectqueue.processor")

LAST_TRIES = 10.0
# In seconds: how long a completion waits for a claim that writes it, where many tasks run.
SOON = 0.025
# In seconds: then connections are closed.
IDLE = 60.0


class SharedState:
    """
    What the feeder, the executor and the monitor of a processor share.

    The feeder puts leases into the ``hand``, and writes what is in the buffers. The executor
    takes attempts by next_task(), and hands them back by ended().
    """

    def __init__(self, plan: Plan, resources: ProcessorResources, reporter: Reporter) -> None:
        self.plan = plan
        self.options = plan.options
        self.resources = resources
        self.reporter = reporter
        self.status = resources.status
        self.worker = worker_name(os.getpid())
        places = plan.options.places
        self.accounts = resources.accounts or QueueAccounts(plan.queues, places)
        self.shares = plan.options.QUEUE_ORDER == FAIR and len(plan.queues) > 1
        self.stopping = False
        self.stop_reason: type[exceptions.ProcessStopError] | None = None
        self.trouble: BaseException | None = None
        self.remaining = plan.options.RECYCLE.get("tasks")
        self.recycling = Recycling(plan.options)
        statuses = [status for status, _wakeup in resources.wakeups.processors]
        self.crowd = Crowd(statuses, len(statuses) * places)
        self.hand = Hand(places, self.crowd, self.give_way)
        self.prefetch = Prefetch(plan.options.TASK_PREFETCH, places=places)
        after = SOON if places > 1 else LATE
        self.completions = Completions(self.completions_written, after=after)
        self.usage = UsageBuffer(using=plan.using, kept=plan.options.USAGE_TIME != 0)
        self.journal = JournalBuffer(
            self.hand.running, using=plan.using, interval=plan.options.JOURNAL_INTERVAL
        )
        self.event_loop = EventLoop()
        self.leases = Leases(self.hand, plan, resources, self.worker)
        self.parking = Parking(plan, self.leases)
        self.report_lock = threading.Lock()
        self.watchdog = Watchdog([], plan.timeout)
        self.wakeups: list[Wakeup] = []
        # Of the monitor: it waits by its wakeup, and sends the next heartbeat then.
        self.monitor_wakeup = Wakeup()
        self.next_beat = 0.0
        self.monitor_waits = False
        # With so many tasks in the batch, or fewer, the end of one may wake the feeder.
        self.low = MOST if places > 1 else 0
        self.more = True
        self.held_up = self.gives_way = self.urgent = False
        # When the feeder wakes by itself; 0 while it does not sleep.
        self.wakes_at = 0.0

    def stop(self, *, now: bool = False) -> None:
        """Acquire no more and end after the running task. For any thread; may be repeated."""
        if now or self.stop_reason is None:
            self.stop_reason = (
                exceptions.ImmediateProcessStopError if now else exceptions.GracefulProcessStopError
            )
        self.stopping = True
        # Threads may wait for the database, too.
        for wakeup in (self.resources.wakeup, *self.wakeups):
            wakeup.wake()

    def fail(self, error: BaseException) -> None:
        """End for an unexpected error; the supervisor replaces the processor."""
        self.trouble = error
        self.resources.wakeup.wake()

    def patience(self) -> float:
        return LAST_TRIES if self.stopping else float("inf")

    def link(self, wakeup: Wakeup) -> Link:
        """Return a link for one thread, which the watchdog checks."""
        link = Link(self.plan.using, wakeup, self.patience, outage=self.plan.outage)
        self.watchdog.links.append(link)
        return link

    def is_busy(self) -> bool:
        """Return whether a handler runs, or something waits to be run or written."""
        return bool(self.hand.count() or self.completions.waiting or self.journal.left)

    def is_spent(self) -> bool:
        """Return whether it must be replaced, for its count of tasks, age or memory."""
        spent = self.remaining is not None and self.remaining <= 0
        return spent or self.recycling.is_due()

    def serve(self) -> None:
        """Report the first acquire to the supervisor, which reads its status at a heartbeat."""
        if not self.status.serves:
            self.status.serves = True
            self.next_beat = 0.0
            self.monitor_wakeup.wake()

    # What wakes the feeder.

    def wake(self) -> None:
        self.wakes_at = 0.0
        self.resources.wakeup.wake()

    def hurry(self) -> None:
        """Have the feeder write what is completed, and hand out the batch again."""
        self.urgent = True
        if self.wakes_at:
            self.wake()

    def give_way(self) -> None:
        """Have the feeder release the batch, as the tasks of others are to come first."""
        self.gives_way = True
        self.wake()

    def is_late(self, now: float) -> bool:
        """Return whether something is due, for which nobody wakes the feeder."""
        if not self.wakes_at or self.leases.is_alone():
            return False
        due = self.leases.due_call(now) is not None
        return due or self.journal.is_due(now) or self.usage.is_overdue(now)

    def is_over(self) -> bool:
        """Return whether the processor is to be replaced; first its tasks end."""
        return self.is_spent() and not self.hand.running()

    def has_to_act(self) -> bool:
        """Return whether there is something to do at once."""
        if self.leases.is_alone():
            return False
        in_hand = self.hand.count()
        if self.urgent or self.gives_way or (self.completions.waiting and not in_hand):
            return True
        if self.stopping:
            return not self.hand.running()
        over = self.trouble is not None or self.is_over()
        more = self.more or self.status.rung or (self.plan.burst and not in_hand)
        return over or (more and self.should_take())

    def should_take(self) -> bool:
        """Return whether to claim now: for short tasks, once half of the room is free."""
        if (
            self.stopping
            or self.status.draining
            or self.is_spent()
            or (self.held_up and not self.hand.free)
            or self.leases.is_alone()
            or time.monotonic() < self.parking.take_at
        ):
            return False
        room = self.room()
        return room > 0 and (not self.hand.batch or 2 * room >= min(MOST, self.prefetch.next()))

    def room(self) -> int:
        """Return how many more tasks to claim."""
        with self.hand.lock:
            # Under the lock, a task that begins or ends is counted exactly once.
            in_hand, remaining = self.hand.count(), self.remaining
        if self.hand.places > 1:
            room = min(MOST, self.prefetch.next() - in_hand)
        else:
            room = self.prefetch.next() if in_hand <= self.low else 0
        return room if remaining is None else min(room, remaining - in_hand)

    # For the threads that run tasks.

    def next_task(self) -> Running | None:
        """Return an attempt that begins now, if there is a lease and a free place."""
        hand = self.hand
        if not hand.batch or self.stopping:
            return None
        now = time.monotonic()
        if now >= self.leases.held_until and self.leases.have_expired(now):
            self.leases.preempt_all()
        with hand.lock:
            last = self.remaining
            if not hand.free or (last is not None and hand.places - len(hand.free) >= last):
                # Those that run are its last before it is replaced.
                return None
            unwritten = self.completions.waiting or self.completions.being_written
            follows = hand.places == 1 and hand.batch and unwritten
            if follows and self.prefetch.may_be_long(hand.batch[0].type):
                # Completions before it are written first.
                self.hurry()
                return None
            if (lease := hand.next(now)) is None:
                return None
            alive_time, asks = self.options.ALIVE_TIME, self.others_first
            task = AcquiredTask(lease, alive_time, self.worker, others_first=asks)
            running = Running(task, index=hand.free.pop())
            hand.going[running.index] = running
            limits = self.plan.time_limits(lease)
            account = account_of(lease) if lease.lane & 1 else lease.lane
            whose = account, 0.0 if lease.is_new else lease.charge
            self.status.begin(
                lease.task_id, since=task.started, limits=limits, index=running.index, whose=whose
            )
            if self.shares:
                self.accounts.begin(lease.queue, task.started, running.index)
            self.usage.current[id(task)] = task
        return running

    def others_first(self, task: AcquiredTask) -> bool:
        """Return whether a task is to yield here and now to the tasks of others."""
        status, after = self.status.of(task.lease.task_id), self.options.YIELD_AFTER
        if status is None or after is None:
            return False
        status.has_steps = True
        ends = self.stopping or self.status.draining
        if ends or task.seconds < after or not task.is_between_steps:
            return False
        if not self.resources.wakeups.is_outranked(status):
            return False
        # Until the listener looks again. Running tasks go on while others are paused.
        status.outranked = store.may_start_again(task.lease)
        return status.outranked

    def ended(self, running: Running, ending: AttemptEnd) -> None:
        """Record the result of an attempt, and free its place."""
        task, index, hand = running.task, running.index, self.hand
        late_at = float("inf")
        with hand.lock:
            if ending.completion is not None:
                self.completions.put(ending, ending.completion)
                late_at = ending.completion.ended + self.completions.after
            self.usage.end(task, task.started + ending.seconds)
            if self.shares:
                self.accounts.end(task.lease.queue, ending.seconds, index)
            self.status.end(index=index)
            self.prefetch.ran(task.lease.type, ending.seconds)
            if task.lease.is_new and self.status.kept:
                self.resources.wakeups.tried(ending.seconds)
            if self.remaining is not None:
                self.remaining -= 1
            hand.going[index] = None
            hand.free.append(index)
            self.held_up = False
        if ending.completion is None:
            self.report([ending])
        if ending.completion is None or task.lease.capped:
            # The task may be due again, or its cap admits another.
            self.more = True
        if ending.stop:
            self.stop()
        # Most ends of short tasks give the feeder nothing to do.
        if wakes_at := self.wakes_at:
            may_act = len(hand.batch) <= self.low
            if wakes_at > late_at or (may_act and self.has_to_act()):
                self.wake()

    def completions_written(self, endings: Sequence[AttemptEnd]) -> None:
        heard = announced(endings)
        for ending in endings:
            if ending.word == "preempted":
                logger.warning("A result came too late. key=%s", printable(ending.task.key))
            if (ending.word, ending.handler) in heard:
                announce(ending.word, ending.task, ending.handler)
        self.report(endings)

    def report(self, endings: Sequence[AttemptEnd]) -> None:
        for word, count in Counter([ending.word for ending in endings]).items():
            self.status.count(word, count)
        self.usage.count(endings)
        for ending in endings:
            if ending.task.notes is not None:
                self.journal.keep(ending.task)
        with self.report_lock:
            self.reporter.print_tasks(endings)
