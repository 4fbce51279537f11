"""A process that acquires and runs tasks."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence

from django_perfectqueue.conf import FAIR
from django_perfectqueue.exceptions import (
    GracefulProcessStopError,
    ImmediateProcessStopError,
    ProcessStopError,
)
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.tracing import otel

from ..attempt import log_capture
from ..attempt.ending import AttemptEnd, announce, announced
from ..attempt.runner import Running
from ..buffers.completions import Completions
from ..buffers.hand import Hand
from ..buffers.journal import JournalBuffer
from ..buffers.usage import UsageBuffer
from ..plan import Plan, worker_name
from ..process.signals import REOPEN_LOGS, RESTART_NOW, STOP_NOW, take_signals
from ..report import Reporter
from ..shared.crowd import Crowd, account_of
from ..shared.queue_order import QueueAccounts
from .asyncio_loop import EventLoopThread
from .executors import Executor, MainThread, ThreadPool
from .feeder import Feeder
from .monitor import Monitor
from .prefetch import Prefetch
from .recycling import Recycling
from .resources import ProcessorResources

logger = logging.getLogger("django_perfectqueue.processor")

LAST_TRIES = 10.0

EXECUTORS: dict[str, type[Executor]] = {
    "process": MainThread,
    "thread": ThreadPool,
    "async": EventLoopThread,
}


class Processor:
    """
    Runs due tasks: a feeder acquires them and writes their completions, an executor runs them.

    The two share the ``hand``, and the buffers of what is to be written.
    """

    def __init__(self, plan: Plan, resources: ProcessorResources, reporter: Reporter) -> None:
        self.plan = plan
        self.options = plan.options
        self.resources = resources
        self.reporter = reporter
        self.slot = resources.slot
        self.worker = worker_name()
        places = plan.options.places
        self.accounts = resources.accounts or QueueAccounts(plan.queues, places)
        self.shares = plan.options.QUEUE_ORDER == FAIR and len(plan.queues) > 1
        self.stopping = False
        self.stop_reason: type[ProcessStopError] | None = None
        self.trouble: BaseException | None = None
        self.remaining = plan.options.RECYCLE.get("tasks")
        self.recycling = Recycling(plan.options)
        slots = [slot for slot, _wakeup in resources.wakeups.processors]
        self.crowd = Crowd(slots, len(slots) * places)
        self.hand = Hand(places, self.crowd, lambda: self.feeder.give_way())
        self.prefetch = Prefetch(plan.options.TASK_PREFETCH, places=places)
        self.completions = Completions(self.completions_written)
        self.usage = UsageBuffer(using=plan.using, kept=plan.options.USAGE_TIME != 0)
        self.journal = JournalBuffer(
            self.hand.running, using=plan.using, interval=plan.options.JOURNAL_INTERVAL
        )
        self.report_lock = threading.Lock()
        self.feeder = Feeder(self)
        self.leases = self.feeder.leases
        self.monitor = Monitor(self, plan, self.leases, [self.feeder.link], resources)
        self.executor = EXECUTORS[plan.options.PROCESSOR_TYPE](self)

    def run(self) -> int:
        """Work until a stop, a recycling, or in a burst until nothing is due."""
        self.executor.open()
        self.accounts.sign_on(time.monotonic())
        take_signals(self.on_signal)
        log_capture.begin(self.options.LOG_CAPTURE)
        self.plan.dispatch.after_fork()
        self.monitor.start()
        try:
            return self.executor.run()
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
        self.executor.wake()

    def fail(self, error: BaseException) -> None:
        """End for an unexpected error; the supervisor replaces the processor."""
        self.trouble = error
        self.resources.wakeup.wake()

    def patience(self) -> float:
        return LAST_TRIES if self.stopping else float("inf")

    def remind(self, now: float) -> None:
        """Repeat interrupts that did not reach their handlers; wake the feeder if it is late."""
        self.executor.remind()
        if self.feeder.is_late(now):
            self.feeder.wake()

    def is_busy(self) -> bool:
        return bool(self.hand.count() or self.completions.waiting or self.journal.left)

    def is_spent(self) -> bool:
        """Return whether it must be replaced, for its count of tasks, age or memory."""
        spent = self.remaining is not None and self.remaining <= 0
        return spent or self.recycling.is_due()

    def serve(self) -> None:
        """Report the first acquire to the supervisor."""
        if not self.slot.serves:
            self.slot.serves = True
            self.monitor.beat_at_once()

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
            if not hand.free or (self.remaining is not None and self.has_enough()):
                return None
            if hand.places == 1 and self.has_to_write():
                self.feeder.hurry()
                return None
            if (lease := hand.next(now)) is None:
                return None
            task = AcquiredTask(lease, alive_time=self.options.ALIVE_TIME, worker=self.worker)
            running = Running(task, index=hand.free.pop())
            hand.going[running.index] = running
            self.note_begin(task, running.index)
        return running

    def has_enough(self) -> bool:
        """Return whether the running tasks are its last before it is replaced."""
        return self.hand.places - len(self.hand.free) >= (self.remaining or 0)

    def has_to_write(self) -> bool:
        """Return whether the next task may be long, and completions before it are not written."""
        completions, batch = self.completions, self.hand.batch
        if not (batch and (completions.waiting or completions.being_written)):
            return False
        return self.prefetch.may_be_long(batch[0].type)

    def ended(self, running: Running, ending: AttemptEnd) -> None:
        """Record the result of an attempt, and free its place."""
        task, index, hand, feeder = running.task, running.index, self.hand, self.feeder
        late_at = float("inf")
        with hand.lock:
            if ending.completion is not None:
                self.completions.put(ending, ending.completion)
                late_at = ending.completion.ended + feeder.patience
            self.note_end(task, ending.seconds, index)
            hand.going[index] = None
            hand.free.append(index)
            feeder.held_up = False
        if ending.completion is None:
            self.report([ending])
        if ending.completion is None or task.lease.capped:
            # The task may be due again, or its cap admits another.
            feeder.more = True
        if ending.stop:
            self.stop()
        # Most ends of short tasks give the feeder nothing to do.
        may_act = feeder.wakes_at and (len(hand.batch) <= feeder.low or feeder.wakes_at > late_at)
        if may_act and feeder.should_wake(late_at):
            feeder.wake()

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
            self.slot.count(word, count)
        self.usage.count(endings)
        for ending in endings:
            if ending.task.notes is not None:
                self.journal.keep(ending.task)
        with self.report_lock:
            self.reporter.print_tasks(endings)

    def close(self) -> None:
        """Stop the threads."""
        self.monitor.stop()
        log_capture.end()
        self.plan.dispatch.after_child_end()
        if self.options.TRACING:
            otel.flush()
        self.slot.signed_off = True
        logger.debug("A processor ends. pid=%s", os.getpid())
