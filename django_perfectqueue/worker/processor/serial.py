"""A processor that runs its tasks one by one."""

from __future__ import annotations

import logging
import os
import random
import time
from operator import attrgetter

from django.db import Error, connections

from django_perfectqueue import store
from django_perfectqueue.queue import AcquiredTask

from ..attempt.context import prepare
from ..attempt.interrupt_main import MainThreadInterrupter
from ..attempt.runner import Runner, Running
from ..database.link import Link
from ..plan import Plan
from ..report import Reporter
from .prefetch import Ahead
from .processor import DONE, LOOK_AFTER, LOOK_UP_AFTER, RECYCLED, Processor
from .resources import ProcessorResources

logger = logging.getLogger("django_perfectqueue.processor")

SHORT = 0.05
"""In seconds: the next batch is acquired while one runs that takes no longer."""
NOT_AHEAD_AFTER_ERROR = 60.0


class SerialProcessor(Processor):
    """
    Runs one task after another, in the main thread, which also acquires them.

    Completions are written together, with the next acquire or after 50 ms if a handler
    takes long. While a full batch of short tasks runs, another thread writes the completions
    of the batch before and acquires the next, so tasks do not wait for the database.
    """

    def __init__(self, plan: Plan, resources: ProcessorResources, reporter: Reporter) -> None:
        super().__init__(plan, resources, reporter)
        self.interrupter = MainThreadInterrupter()
        self.runner = Runner(plan.dispatch, link=self.link, interrupter=self.interrupter)
        self.held_until = 0.0
        link = Link(plan.using, resources.wakeup, self.patience, outage=plan.outage)
        self.ahead = Ahead(link, self.batch)
        self.not_ahead_before = 0.0
        self.monitor.watchdog.add(link)
        self.link.returned = self.returned

    def open(self) -> None:
        self.interrupter.install()
        prepare()

    @property
    def running(self) -> list[Running]:
        """The attempts in progress; for any thread."""
        running = self.runner.running
        return [] if running is None else [running]

    def remind(self) -> None:
        self.interrupter.remind()

    def work(self) -> int:
        while not self.stopping:
            if self.is_spent():
                return RECYCLED
            # Not before a task that ends a rest, and not before its completion.
            if not (self.rested or self.found_few) and self.usage.is_due(time.monotonic()):
                self.write_usage()
            self.resources.wakeup.wait(max(0.0, self.parking.take_at - time.monotonic()))
            taken = self.taken_ahead() or self.take()
            self.serve()
            self.taken_at = time.monotonic()
            if self.may_take_ahead(taken):
                self.ahead.begin(self.wanted(), self.claim)
            if taken:
                self.pass_on(taken)
            self.monitor.wake()
            self.parking.park()
            self.write_last_notes()
            self.run_batch()
            if self.plan.burst:
                if self.is_last(taken):
                    return DONE
            elif not taken:
                self.idle()
                self.rested = True
        return DONE

    def take(self) -> list[store.Lease]:
        """Acquire a batch, and wait for it."""
        self.slot.seek()
        taken = self.link.insist(self.acquire)
        self.batch.extend(taken)
        return taken

    def may_take_ahead(self, taken: list[store.Lease]) -> bool:
        """
        Return whether to acquire the next batch while this one runs: where more are due, all
        are short, and nothing depends on what is held.

        Only on PostgreSQL: SQLite's driver gives up the GIL at each row, and MariaDB gains
        nothing by it.
        """
        seconds = self.prefetch.mean * len(taken)
        if len(taken) < self.requested or not 0.0 < seconds <= SHORT:
            return False
        if self.shares or self.remaining is not None or self.prefetch.fixed is not None:
            return False
        if connections[self.plan.using].vendor != "postgresql":
            return False
        if self.stopping or self.taken_at < max(self.not_ahead_before, self.parking.look_until):
            return False
        return not any(map(attrgetter("capped"), taken))

    def taken_ahead(self) -> list[store.Lease]:
        """Return the batch that was acquired ahead, if any."""
        try:
            taken = self.ahead.take()
        except Error as error:
            # It may hold leases whose answer was lost; ``link`` gives them back now.
            self.not_ahead_before = time.monotonic() + NOT_AHEAD_AFTER_ERROR
            self.link.trouble(error)
            return []
        if taken:
            self.requested = self.ahead.limit
            if self.batch and self.batch[0].token == taken[0].token:
                # Nothing is left of the batch before, whose leases end sooner.
                self.renewed(self.ahead.before)
        return taken

    def returned(self) -> None:
        """After an outage give back what is unknown, once the other thread's leases are known."""
        self.ahead.wait()
        self.leases.give_back_uncertain(self.kept())

    def acquire(self) -> list[store.Lease]:
        """
        Acquire tasks; after a few that ended a rest, only if more are due.

        To write their completions and to look takes fewer statements than an acquire.
        """
        few, self.found_few = self.found_few, False
        if few and not (self.stopping or self.plan.burst):
            self.write_completions()
            if not self.look().due:
                return []
        return super().acquire()

    def wanted(self) -> int:
        limit = self.prefetch.limit()
        return limit if self.remaining is None else min(limit, self.remaining)

    def are_serial(self, count: int) -> bool:
        return True

    def renewed(self, at: float) -> None:
        super().renewed(at)
        # A renewal by another thread or process only extends this.
        self.held_until = at + self.options.ALIVE_TIME

    def run_batch(self) -> None:
        began = time.monotonic()
        self.run_leases()
        self.prefetch.paced(time.monotonic() - began)

    def run_leases(self) -> None:
        over_at = self.prefetch.over_at(self.taken_at)
        while not self.stopping:
            if self.batch and time.monotonic() >= over_at:
                self.link.insist(self.leases.release_rest)
            # The lease stays in the batch during the write: after an outage,
            # give_back_uncertain() releases leases that are in no list.
            if self.completions.waiting and self.should_write_before_next():
                self.link.insist(self.write_completions)
                self.write_last_notes()
            if len(self.batch) <= self.ahead.count:
                return
            if self.stopping or not (lease := self.next_lease()):
                return
            self.run_one(lease)

    def next_lease(self) -> store.Lease | None:
        """Return the next lease, after dropping those that may have expired."""
        while True:
            if self.in_hand.unsure:
                self.link.insist(self.leases.make_sure)
            now = time.monotonic()
            if now >= self.held_until and self.leases.have_expired(now):
                self.leases.preempt_all()
            lease = self.in_hand.next(now, max(0, self.ahead.count))
            if lease or not self.in_hand.unsure:
                return lease

    def should_write_before_next(self) -> bool:
        try:
            type_ = self.batch[0].type
        except IndexError:
            return False
        return self.prefetch.may_be_long(type_) or self.completions.is_late(time.monotonic())

    def run_one(self, lease: store.Lease) -> None:
        task = AcquiredTask(lease, alive_time=self.options.ALIVE_TIME, worker=self.worker)
        self.note_begin(task)
        ending = self.runner.attend(Running(task))
        self.note_end(task, ending.seconds)
        if ending.completion is not None:
            self.completions.put(ending, ending.completion)
        else:
            self.report([ending])
        if ending.stop:
            self.stop()

    def idle(self) -> None:
        """
        Wait for a wake-up; without a listener for POLL_INTERVAL at most.

        A look every minute keeps the connection alive and finds missed tasks. If ``rung`` is
        set without a wake-up, its sender died in between, or a link that waited has read the
        byte: the processor looks as well.
        """
        look_at = time.monotonic() + LOOK_AFTER * random.uniform(0.7, 1.0)  # noqa: S311
        while not self.stopping:
            if self.usage.is_due(time.monotonic()):
                self.write_usage()
            tended = self.resources.wakeups.is_tended()
            pause = LOOK_UP_AFTER if tended else self.options.POLL_INTERVAL
            pause *= 0.0 if self.slot.rung else random.uniform(0.7, 1.0)  # noqa: S311
            rung = self.resources.wakeup.wait(pause) or self.slot.rung
            if not rung:
                self.ahead.rest()
            if rung or not tended or self.recycling.is_due():
                logger.debug("A processor looks for tasks. pid=%s rung=%s", os.getpid(), rung)
                return
            if time.monotonic() >= look_at:
                if self.link.insist(self.look).due:
                    return
                look_at = time.monotonic() + LOOK_AFTER

    def close(self) -> None:
        self.stop()
        # What it acquires until then is released with the rest of the batch.
        self.ahead.stop()
        try:
            if self.ahead.is_known():
                # So is what it may have acquired without an answer.
                self.taken_ahead()
        finally:
            super().close()
            self.runner.event_loop.close()
