"""The process for timers, idle lanes, usage roll-up and retention."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from django.db import connections

from django_perfectqueue import store
from django_perfectqueue.models import PARKED_FROM
from django_perfectqueue.store.lanes.idle_marks import Rounds
from django_perfectqueue.store.upkeep.purge import BATCH
from django_perfectqueue.store.upkeep.timers import BATCH as LANES

from ..database.link import AwayError
from ..plan import Plan
from ..shared.wakeups import Wakeups
from .base import HelperProcess
from .periodic import Recounter, ScheduleSync, UsageRollup
from .registration import WorkerRegistration

R = TypeVar("R")

logger = logging.getLogger("django_perfectqueue.database")

SWEEP_INTERVAL = 5.0
LONGEST_WAIT = 2.0
MOST_BATCHES = 600
MOST_ROUSED = 20
ROUND = 3_600.0
MOSTLY_OVER = BATCH // 2
ENDED = ("finished", "failed", "cancelled", "expired")


class Janitor(HelperProcess):
    """
    Fires due timers, rolls up usage, checks counters, deletes old tasks in small batches,
    and renews the registration of its worker until the last processor has ended.

    Processors fire timers when they acquire, but all may be busy for long. While one is free,
    the listener wakes it.
    """

    def __init__(
        self, plan: Plan, wakeups: Wakeups, registration: WorkerRegistration, *, parent_alive: int
    ) -> None:
        super().__init__(plan, parent_alive=parent_alive)
        self.wakeups = wakeups
        self.registration = registration
        self.purge = Purge(plan)
        self.idle_lanes = IdleLanes(plan.using)
        self.usage_rollup = UsageRollup(plan)
        self.recounter = Recounter(plan.using, registration)
        self.parked = Parked(plan)
        self.schedule_sync = ScheduleSync(plan.using, registration)
        self.file = file_identity(plan.using)
        self.rounds = Rounds(SWEEP_INTERVAL / 2)

    def work(self) -> None:
        next_purge = time.monotonic()
        while not self.stopping:
            self.check_file()
            self.keep_registration()
            # It replaces what stops every claim, and the timers too.
            self.step("counters", self.recounter.work)
            self.sweep()
            self.step("usage", self.usage_rollup.work)
            self.step("parked tasks", self.parked.work)
            self.step("schedules", self.schedule_sync.work)
            if time.monotonic() >= next_purge:
                self.purge_some()
                next_purge = time.monotonic() + self.plan.options.PURGE_INTERVAL
            pause = min(SWEEP_INTERVAL, self.plan.options.PURGE_INTERVAL)
            self.rest(pause * random.uniform(1.0, 1.25))  # noqa: S311
        # A service manager may stop all processes at once; others still see what the worker runs.
        while self.wakeups.is_at_work() and not self.orphaned:
            self.keep_registration()
            self.wait(LONGEST_WAIT, self.registration.status_page)
        self.registration.end(self.link)

    def step(self, name: str, work: Callable[[], R]) -> R | None:
        """
        Do one step, again while the database is away. One that fails for what is stored
        holds up no other: it is logged, and in the worker's registration.
        """

        def attempt() -> R | None:
            try:
                return work()
            except AwayError:
                raise
            except Exception as error:
                if not store.may_be_a_row(error, using=self.plan.using):
                    raise
                self.note_problem(name, f"{type(error).__name__}: {self.link.in_one_line(error)}")
                return None

        return self.link.insist(attempt)

    def note_problem(self, step: str, text: str) -> None:
        if self.registration.note_problem(step, text):
            logger.error("A step of the upkeep fails; others go on. step=%s error=%s", step, text)

    def keep_registration(self) -> None:
        """Renew the registration, which must not wait for the long work."""
        self.step("registration", lambda: self.registration.renew(self.link))

    def rest(self, seconds: float) -> None:
        """Wait; meanwhile keep the registration."""
        until = time.monotonic() + seconds
        while not self.stopping and (left := until - time.monotonic()) > 0:
            self.wait(min(left, LONGEST_WAIT), self.registration.status_page)
            self.keep_registration()

    def check_file(self) -> None:
        """Reconnect all processes when the file of a SQLite database was replaced."""
        before, now = self.file, file_identity(self.plan.using)
        self.file = now or before
        if before and now and before != now:
            logger.error(
                "The database's file was replaced; the worker uses the new one."
                " database=%s What ran meanwhile may run again.",
                self.plan.using,
            )
            self.plan.outage.reconnect()

    def sweep(self) -> None:
        more = not (self.wakeups.has_free() and self.wakeups.is_tended())
        while more and not self.stopping:
            more = bool(self.step("timers", lambda: store.answer_alarms(using=self.plan.using)))
            self.keep_registration()
        # Nobody acts on what was locked when it ended, where who held that rolled back or died.
        self.step("dependencies", lambda: store.follow(using=self.plan.using))
        if self.rounds.are_due():
            began = time.monotonic()
            self.wake_forgotten_lanes()
            self.rounds.began(began)

    def wake_forgotten_lanes(self) -> None:
        """Wake idle lanes that have tasks."""
        wake = partial(store.wake_forgotten_lanes, using=self.plan.using)
        for _batch in range(MOST_ROUSED):
            if self.stopping or (self.step("lanes", wake) or 0) < LANES:
                return

    def purge_some(self) -> None:
        """Delete batches for at most half of PURGE_INTERVAL."""
        deadline = time.monotonic() + self.plan.options.PURGE_INTERVAL / 2
        self.step("batches", self.purge.forget_batches)
        self.step("purge", self.purge.begin)
        for _batch in range(MOST_BATCHES):
            if self.stopping or time.monotonic() > deadline:
                break
            self.keep_registration()
            if not self.step("purge", self.purge.batch):
                break
        if self.purge.kept_for:
            self.note_problem("purge", " ".join(sorted(self.purge.kept_for)))
        while not self.stopping and time.monotonic() <= deadline:
            self.keep_registration()
            if not self.step("idle lanes", self.idle_lanes.batch):
                return


class Parked:
    """
    Unparks tasks: every RETRY_WAIT those of types known here, and every RETRY_WAIT_LIMIT all
    of them, so that other programs can take them and so that they expire.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.next_look = 0.0
        self.all_at = time.monotonic() + plan.options.RETRY_WAIT_LIMIT
        self.reached = self.all_reached = PARKED_FROM

    def work(self) -> None:
        """Unpark a batch if one is due; called every few seconds."""
        now, options = time.monotonic(), self.plan.options
        if now >= self.all_at:
            using, after = self.plan.using, self.all_reached
            self.all_reached = store.unpark(lambda _type: True, using=using, after=after)
            if self.all_reached == PARKED_FROM:
                self.all_at = now + max(options.RETRY_WAIT_LIMIT, SWEEP_INTERVAL)
        elif now >= self.next_look:
            self.next_look = now + options.RETRY_WAIT
            knows = self.plan.dispatch.knows
            self.reached = store.unpark(knows, using=self.plan.using, after=self.reached)


class IdleLanes:
    """
    Deletes unused lanes, holds and meters.

    It scans them once in ROUND, so that those in use are seldom recreated.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self.next_round = time.monotonic() + ROUND * random.uniform(0.0, 1.0)  # noqa: S311
        self.left: list[tuple[Callable[..., int | str | None], int | str]] = []

    def batch(self) -> bool:
        """Scan one batch if a round is due; return whether the round continues."""
        if not self.left:
            if time.monotonic() < self.next_round:
                return False
            self.next_round = time.monotonic() + ROUND
            first = store.FIRST_ID
            self.left = [
                (store.forget_holds, first),
                (store.forget_lanes, first),
                (store.forget_meters, ""),
            ]
        forget, after = self.left[0]
        reached = forget(after, using=self.using)
        self.left[:1] = [] if reached is None else [(forget, reached)]
        return bool(self.left)


@dataclass
class Purge:
    """
    Deletes old tasks at two positions.

    ``front`` moves up from the oldest task and stops at tasks that are too young. ``slow``
    scans the tasks that ``front`` passed because they were alive or are kept for longer.
    It moves one batch a round, and goes on while most of a batch was deleted, as after a
    backlog.
    """

    plan: Plan
    front: int = 0
    slow: int = 0
    surplus: store.Surplus | None = None
    at_front: bool = field(default=True, init=False)
    kept_for: set[str] = field(default_factory=set, init=False)

    def begin(self) -> None:
        """Start a round: first ``slow``, then ``front``."""
        self.at_front = False
        self.kept_for.clear()
        if self.plan.options.RETENTION_COUNT is not None:
            self.count(self.plan.options.RETENTION_COUNT)

    def forget_batches(self) -> None:
        keep = self.plan.options.retention_time("finished")
        if keep is not None:
            store.forget_batches(keep, using=self.plan.using)

    def count(self, keep: int) -> None:
        """
        Find the tasks beyond RETENTION_COUNT, once enough new tasks were submitted.

        Enough is a tenth of the rows read the last time. So a submit costs at most ten row
        reads, and at most a tenth too many are kept.
        """
        newest, known = store.newest_id(using=self.plan.using), self.surplus
        if known is None or newest - known.newest >= known.read / 10:
            self.surplus = store.surplus(keep, using=self.plan.using)

    def batch(self) -> bool:
        """Delete one batch; return whether the round continues."""
        if not self.at_front:
            self.at_front = not (self.front and self.slow_batch())
            return True
        swept = self.swept(self.front)
        if swept.stopped or swept.reached is None:
            return False
        self.front = swept.reached
        return True

    def slow_batch(self) -> bool:
        """Delete at ``slow``; return whether to go on at once."""
        swept = self.swept(self.slow)
        if swept.reached is None or swept.reached >= self.front:
            self.slow = 0
            return False
        self.slow = swept.reached
        return swept.deleted > MOSTLY_OVER

    def swept(self, after: int) -> store.Swept:
        options = self.plan.options
        found = store.purgeable(
            {status: options.retention_time(status) for status in ENDED},
            using=self.plan.using,
            after=after,
            over=self.surplus.last if self.surplus else {},
        )
        swept = store.purge(found, using=self.plan.using)
        self.kept_for.update(swept.kept_for)
        return swept


def file_identity(using: str) -> tuple[int, int] | None:
    """Return device and inode of a SQLite database; None elsewhere."""
    if connections[using].vendor != "sqlite":
        return None
    try:
        status = os.stat(str(connections[using].settings_dict["NAME"]))
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
