"""The thread that watches while handlers run."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from django.db import Error

from django_perfectqueue.exceptions import (
    GracefulProcessStopError,
    ImmediateProcessStopError,
    TimeLimitError,
)
from django_perfectqueue.processes import kill_own_tree
from django_perfectqueue.texts import printable

from . import outlet
from .bell import Bell, drain, readable
from .errands import Errand, Errands
from .runner import Running
from .signals import reopen_logs
from .watch import Watch

if TYPE_CHECKING:
    from .processor import Processor

logger = logging.getLogger("django_perfectqueue.keeper")

TICK = 0.05
TOO_LONG = 1.0
LAST_ERRAND = 10.0
LEAST_TRIES = 20


class Keeper:
    """
    Tells the supervisor that the processor lives, and the processor what it can't see
    while it is busy: that a lease is lost, a time limit has passed, a stop was asked for,
    the supervisor is gone.

    It never waits for the database; what does is an errand.
    """

    def __init__(self, processor: Processor, *, pulse: int, lifeline: int) -> None:
        self.processor = processor
        self.pulse = pulse
        self.lifeline = lifeline
        self.bell = Bell()
        self.errands = Errands()
        self.watch = Watch([processor.link, processor.aside], processor.plan.timeout)
        self.no_errand_before = 0.0
        self.interval = processor.options.CHILD_HEARTBEAT_INTERVAL
        self.next_beat = 0.0
        self.dozing = False
        self.ended = False
        self.orphaned = False
        self.logs_moved = False
        self.thread = threading.Thread(target=self.run, name="keeper", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.ended = True
        self.bell.ring()
        self.thread.join(LAST_ERRAND)
        self.errands.stop(LAST_ERRAND)

    def wake(self) -> None:
        """Be told that there is something to watch again."""
        if self.dozing:
            self.bell.ring()

    def run(self) -> None:
        while not self.ended:
            try:
                self.tick(time.monotonic())
            except Exception:
                logger.exception("The keeper stumbled.")
            self.wait()

    def wait(self) -> None:
        self.dozing = True
        until_beat = max(0.0, self.next_beat - time.monotonic())
        awake = self.processor.is_busy() or self.processor.aside.away_since > 0
        pause = min(TICK, until_beat) if awake else until_beat
        files = [self.bell.ear] if self.orphaned else [self.bell.ear, self.lifeline]
        heard = readable(files, pause)
        self.dozing = False
        if self.bell.ear in heard:
            drain(self.bell.ear)
        if self.lifeline in heard and drain(self.lifeline) is None:
            self.orphan()

    def orphan(self) -> None:
        self.orphaned = True
        logger.error(
            "The supervisor is gone; this processor ends with its task. pid=%s", os.getpid()
        )
        self.processor.stop()

    def tick(self, now: float) -> None:
        self.beat(now)
        outlet.push()
        self.watch.look(now)
        if self.logs_moved:
            self.logs_moved = False
            reopen_logs()
        self.tell_of_stop()
        for running in self.processor.running:
            self.hold_to_limits(running, now)
        if self.processor.heart.have_lapsed(now):
            self.processor.heart.lapse()
        if self.processor.heart.is_alone() or not self.may_send(now):
            return
        if errand := self.errand(now):
            self.errands.send(lambda: self.in_time_of_trouble(errand))
        elif self.processor.scribe.is_due(now):
            self.errands.send(lambda: self.processor.write_notes(self.processor.aside))

    def may_send(self, now: float) -> bool:
        return not self.errands.busy and now >= self.no_errand_before

    def beat(self, now: float) -> None:
        self.processor.slot.beat_at = now
        if now >= self.next_beat:
            self.next_beat = now + self.interval
            try:
                os.write(self.pulse, b".")
            except BlockingIOError:
                pass
            except OSError:
                if not self.orphaned:
                    self.orphan()

    def beat_at_once(self) -> None:
        """Have the supervisor look here now."""
        self.next_beat = 0.0
        self.bell.ring()

    def tell_of_stop(self) -> None:
        if not self.processor.stopping:
            return
        immediate = self.processor.stopping_now
        kind = ImmediateProcessStopError if immediate else GracefulProcessStopError
        for running in self.processor.running:
            running.kill(kind("The processor stops."))

    def hold_to_limits(self, running: Running, now: float) -> None:
        """Break off what has run for too long; by force only if no one else is left to do it."""
        task = running.task
        if not running.active:
            self.processor.slot.returned(task.lease.task_id)
            return
        limit, _wait = self.processor.plan.time_limits(task.lease)
        if now - task.started >= limit:
            reason = f"Task '{task.key}' has run for longer than its time limit of {limit:g} s."
            self.processor.heart.tell(running, TimeLimitError(reason))
        if self.orphaned and self.processor.slot.overdue(now):
            logger.error(
                "A handler goes on after its time; its process ends. key=%s", printable(task.key)
            )
            kill_own_tree()

    def errand(self, now: float) -> Errand | None:
        processor = self.processor
        if errand := processor.heart.errand(now):
            return errand
        running = processor.running
        if not running:
            # Nothing is to be watched any more, but the trouble has to come to its end.
            return processor.look if processor.aside.away_since else None
        if processor.ledger.is_overdue(now):
            return processor.ledger.write
        began = max(one.task.started for one in running)
        if processor.batch and self.should_give_back(now - began):
            return processor.release_rest
        if processor.outbox.is_late(now):
            return processor.post
        return None

    def should_give_back(self, seconds: float) -> bool:
        """Others may run what waits here behind a task that takes long."""
        return self.processor.stopping or (
            self.processor.pace.prefetch is None and seconds >= TOO_LONG
        )

    def in_time_of_trouble(self, errand: Errand) -> None:
        """Do it, or do none for a while: ever longer, but never for so long that a lease lapses."""
        aside = self.processor.aside
        try:
            aside.once(errand)
        except Error as error:
            aside.trouble(error)
            longest = self.processor.options.ALIVE_TIME / LEAST_TRIES
            self.no_errand_before = time.monotonic() + min(aside.pause(), longest)
