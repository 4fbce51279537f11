"""The thread that watches while handlers run."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from django.db import Error

from django_perfectqueue.exceptions import ProcessStopError, TimeLimitError
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.lib.processes import kill_own_tree

from ..attempt.runner import Running
from ..database.link import Link
from ..database.watchdog import Watch
from ..plan import Plan
from ..process import output
from ..process.signals import reopen_logs
from ..process.wakeup import Bell, drain, readable
from .background import Errand, Errands
from .leases import Heart

logger = logging.getLogger("django_perfectqueue.keeper")

TICK = 0.05
LAST_ERRAND = 10.0
LEAST_TRIES = 20


class Watched(Protocol):
    """What the keeper asks of its processor."""

    stop_reason: type[ProcessStopError] | None

    def stop(self) -> None: ...

    def is_busy(self) -> bool:
        """Return whether a handler runs, or something waits to be run or written."""

    def errand(self, now: float) -> Errand | None:
        """Return what waits to be done over the link ``aside``, if anything."""

    def note_errand(self, now: float) -> Errand | None:
        """Return what writes what handlers have reported, if there is something."""


class Keeper:
    """
    The monitor of a processor: shows the supervisor that it lives, and sees what it can't see
    while it is busy: that a lease is lost, a time limit has passed, a stop was asked for,
    the supervisor is gone.

    It never waits for the database; what does is an errand, over the link ``aside``.
    """

    def __init__(
        self,
        watched: Watched,
        plan: Plan,
        heart: Heart,
        links: Sequence[Link],
        *,
        pulse: int,
        lifeline: int,
    ) -> None:
        self.watched = watched
        self.plan = plan
        self.heart = heart
        self.slot = heart.slot
        self.running = heart.in_hand.running
        self.aside = links[-1]
        self.pulse = pulse
        self.lifeline = lifeline
        self.bell = Bell()
        self.errands = Errands()
        self.watch = Watch(links, plan.timeout)
        self.no_errand_before = 0.0
        self.interval = plan.options.CHILD_HEARTBEAT_INTERVAL
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
        """Watch again: there is something to watch."""
        if self.dozing:
            self.bell.ring()

    def run(self) -> None:
        while not self.ended:
            try:
                self.tick(time.monotonic())
            except Exception:
                logger.exception("The monitor thread raised an exception and continues.")
            self.wait()

    def wait(self) -> None:
        self.dozing = True
        until_beat = max(0.0, self.next_beat - time.monotonic())
        awake = self.watched.is_busy() or self.aside.away_since > 0
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
        self.watched.stop()

    def tick(self, now: float) -> None:
        self.beat(now)
        output.push()
        self.watch.look(now)
        if self.logs_moved:
            self.logs_moved = False
            reopen_logs()
        if reason := self.watched.stop_reason:
            for running in self.running():
                running.kill(reason("The processor stops."))
        for running in self.running():
            self.hold_to_limits(running, now)
        if self.heart.have_lapsed(now):
            self.heart.lapse()
        if self.heart.is_alone() or not self.may_send(now):
            return
        if errand := self.heart.errand(now) or self.watched.errand(now):
            self.errands.send(lambda: self.in_time_of_trouble(errand))
        elif note_errand := self.watched.note_errand(now):
            self.errands.send(note_errand)

    def may_send(self, now: float) -> bool:
        return not self.errands.busy and now >= self.no_errand_before

    def beat(self, now: float) -> None:
        self.slot.beat_at = now
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

    def hold_to_limits(self, running: Running, now: float) -> None:
        """Break off what has run for too long; by force only if no one else is left to do it."""
        task = running.task
        if not running.active:
            self.slot.returned(task.lease.task_id)
            return
        limit, _wait = self.plan.time_limits(task.lease)
        if now - task.started >= limit:
            reason = f"Task '{task.key}' has run for longer than its time limit of {limit:g} s."
            self.heart.interrupt(running, TimeLimitError(reason))
        if self.orphaned and self.slot.overdue(now):
            logger.error(
                "A handler goes on after its time; its process ends. key=%s", printable(task.key)
            )
            kill_own_tree()

    def in_time_of_trouble(self, errand: Errand) -> None:
        """Do it, or do none for a while: ever longer, but never for so long that a lease lapses."""
        aside = self.aside
        try:
            aside.once(errand)
        except Error as error:
            aside.trouble(error)
            longest = self.plan.options.ALIVE_TIME / LEAST_TRIES
            self.no_errand_before = time.monotonic() + min(aside.pause(), longest)
