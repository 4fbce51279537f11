"""The helper for timers, idle lanes, usage roll-up and retention."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from django.db import connections

from django_perfectqueue import store
from django_perfectqueue.fairness.declared import store_declared
from django_perfectqueue.fairness.edit import end_pauses
from django_perfectqueue.models import PARKED_FROM, Outcome
from django_perfectqueue.schedules.declared import declared_for, sync
from django_perfectqueue.store.tasks import park
from django_perfectqueue.store.upkeep.deletion import BATCH
from django_perfectqueue.store.upkeep.timers import BATCH as LANES
from django_perfectqueue.store.values import Watermarks

from ..database.link import AwayError
from ..plan import Plan
from ..shared.status import Wakeups
from .base import Helper
from .registration import WorkerRegistration

P = TypeVar("P")
R = TypeVar("R")

logger = logging.getLogger("django_perfectqueue.database")

SWEEP_INTERVAL = 5.0
LONGEST_WAIT = 2.0
IDLE_INTERVAL = 3600.0
QUIET_INTERVAL = 30.0
MOST_ROUSED = 20
MOSTLY_OVER = BATCH // 2
AT_ONCE = 0.0


class Janitor(Helper):
    """
    Does the jobs of the upkeep, one after another, and renews the registration of its worker
    until the last processor has ended.

    Processors fire timers when they acquire, but all may be busy for long. While one is free,
    the listener wakes it.
    """

    def __init__(self, plan: Plan, wakeups: Wakeups, registration: WorkerRegistration) -> None:
        super().__init__(plan)
        self.using = plan.using
        self.wakeups = wakeups
        self.registration = registration
        self.purge = Purge(plan, self.note_kept)
        self.kept_for: set[str] = set()
        self.file = file_identity(plan.using)
        self.schedules = declared_for(plan.using)
        self.synced = False
        self.marks = Watermarks(taken=Watermarks.MANY)
        self.newest = 0
        self.jobs = self.upkeep()

    def upkeep(self) -> list[Job]:
        """Return the jobs in the order in which they are done when several are due."""
        using, options, now = self.using, self.plan.options, time.monotonic()
        sweep = min(SWEEP_INTERVAL, options.PURGE_INTERVAL)
        retry, retry_all = max(options.RETRY_WAIT, sweep), max(options.RETRY_WAIT_LIMIT, sweep)
        unpark = Scan(
            partial(park.unpark, self.plan.dispatch.knows, using=using), PARKED_FROM, sweep
        )
        unpark_all = Scan(partial(park.unpark, lambda _type: True, using=using), PARKED_FROM, sweep)
        first = store.upkeep.FIRST_ID
        accounts = Scan(partial(self.recount, store.upkeep.recount_accounts), first)
        meters = Scan(partial(self.recount, store.upkeep.recount_meters), "")
        # At another time in each worker.
        idle = partial(Job, every=IDLE_INTERVAL, due_at=now + random.uniform(0.0, IDLE_INTERVAL))  # noqa: S311
        found = [
            Job("file", sweep, self.check_file),
            Job("counters", 60.0, accounts, rest=1000.0),
            Job("counters of limits", 60.0, meters, rest=1000.0),
            Job("timers", sweep, self.fire_timers),
            # A task may end while another process has its lock, and that process roll back or die.
            Job("dependencies", sweep, partial(store.records.follow, using=using)),
            Job("lanes", sweep, self.wake_forgotten_lanes, rest=100.0),
            Job("pauses", sweep, partial(end_pauses, using=using)),
            # So that other programs can take those of types unknown here, and so that they expire.
            Job("parked tasks", retry, unpark),
            Job("all parked tasks", retry_all, unpark_all, now + retry_all),
            Job("schedules", 30.0, self.sync_schedules),
            Job("batches", options.PURGE_INTERVAL, self.purge.forget_batches),
            Job("retention count", options.PURGE_INTERVAL, self.purge.count),
            Job("purge of what was passed", options.PURGE_INTERVAL, self.purge.behind),
            Job("purge", options.PURGE_INTERVAL, self.purge.at_front),
            idle("idle holds", call=Scan(partial(store.upkeep.forget_holds, using=using), first)),
            idle("idle lanes", call=Scan(partial(store.upkeep.forget_lanes, using=using), first)),
            idle("idle meters", call=Scan(partial(store.upkeep.forget_meters, using=using), "")),
        ]
        if options.USAGE_TIME != 0:
            roll_up = partial(store.records.roll_up, using=using, keep=options.USAGE_TIME)
            found += [
                Job("usage", 10.0, self.note_waiting, rest=50.0),
                Job("submitted", 60.0, self.count_submitted),
                Job("usage sums", 60.0, roll_up),
            ]
        return found

    def work(self) -> None:
        while not self.stopping:
            self.keep_registration()
            for job in self.jobs:
                self.run_job(job)
            pause = max(0.0, min(job.due_at for job in self.jobs) - time.monotonic())
            # Not at the same time as the janitors of other workers.
            pause = min(LONGEST_WAIT, pause) * random.uniform(1.0, 1.25)  # noqa: S311
            self.wait(pause)
        # A service manager may stop all processes at once; others still see what the worker runs.
        while self.wakeups.is_at_work() and not self.orphaned:
            self.keep_registration()
            self.wait(LONGEST_WAIT)
        # If processors are killed before they end, the next worker finds their tasks by its row.
        if not self.wakeups.is_at_work():
            worker = self.registration.worker.id
            self.link.retry_until_done(lambda: store.records.sign_off(worker, using=self.using))

    def run_job(self, job: Job) -> None:
        """Do a job if it is due, and again while it has more, up to half of PURGE_INTERVAL."""
        until = time.monotonic() + self.plan.options.PURGE_INTERVAL / 2
        while not self.stopping and job.due_at <= time.monotonic():
            began = time.monotonic()
            again = self.step(job.name, job.call)
            now = time.monotonic()
            pause = again if isinstance(again, float) and now < until else job.every
            job.due_at = now + max(pause, job.rest * (now - began))
            self.keep_registration()

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
                if not store.database.may_be_a_row(error, using=self.using):
                    raise
                self.note_problem(name, f"{type(error).__name__}: {self.link.in_one_line(error)}")
                return None

        return self.link.retry_until_done(attempt)

    def note_problem(self, step: str, text: str) -> None:
        if self.registration.note_problem(step, text):
            logger.error("A step of the upkeep fails; others go on. step=%s error=%s", step, text)

    def keep_registration(self) -> None:
        """Renew the registration, which must not wait for the long work."""

        def renew() -> None:
            self.registration.renew(self.link)
            self.wakeups.drain(self.registration.worker.draining)

        self.step("registration", renew)

    def check_file(self) -> None:
        """Reconnect all processes when the file of a SQLite database was replaced."""
        before, now = self.file, file_identity(self.using)
        self.file = now or before
        if before and now and before != now:
            logger.error(
                "The database's file was replaced; the worker uses the new one."
                " database=%s What ran meanwhile may run again.",
                self.using,
            )
            self.plan.outage.reconnect()

    def fire_timers(self) -> float | None:
        if self.wakeups.has_free() and self.wakeups.has_listener():
            return None
        left = store.schedules.fire_due_timers(using=self.using, marks=self.marks)
        return AT_ONCE if left else None

    def wake_forgotten_lanes(self) -> None:
        """Wake idle lanes that have tasks; a bounded number, as other settings undo it."""
        for _batch in range(MOST_ROUSED):
            if self.stopping or store.upkeep.wake_forgotten_lanes(using=self.using) < LANES:
                return

    def note_waiting(self) -> float | None:
        """Record waiting users; less often while there is none."""
        return None if store.records.note_waiting(using=self.using) else QUIET_INTERVAL

    def count_submitted(self) -> None:
        """Count the tasks that were submitted since the last count."""
        self.newest = store.records.count_submitted(self.newest, using=self.using)

    def recount(self, some: Callable[..., tuple[R, Iterable[object]]], after: object) -> R:
        """
        Compare some counters. One that differs is corrected, logged, and noted in the
        worker's registration.
        """
        reached, corrected = some(after, using=self.using)
        for drift in corrected:
            logger.error("A counter differed from the running tasks and was corrected. %s", drift)
        if corrected:
            self.registration.note_drift(time.monotonic())
        return reached

    def sync_schedules(self) -> float | None:
        """Store declared limits and schedules once, and schedules again where there are any."""
        worker, first = self.registration.worker.id, not self.synced
        if first:
            store_declared(worker, using=self.using)
        declared = sync(self.schedules, using=self.using, worker=worker, first=first)
        self.synced = True
        return None if declared else float("inf")

    def note_kept(self, kept_for: Iterable[str]) -> None:
        """Note constraints for which old tasks are kept; all that were met, so once each."""
        if kept_for:
            self.kept_for.update(kept_for)
            self.note_problem("purge", " ".join(sorted(self.kept_for)))


class Purge:
    """
    Deletes old tasks at two positions.

    ``front`` moves up from the oldest task and stops at tasks that are too young. ``slow``
    scans the tasks that ``front`` passed because they were alive or are kept for longer.
    It moves one batch a round, and goes on while most of a batch was deleted, as after a
    backlog. ``note_kept`` gets the constraints for which tasks are kept.
    """

    def __init__(
        self, plan: Plan, note_kept: Callable[[Iterable[str]], object] = lambda kept_for: None
    ) -> None:
        self.plan = plan
        self.note_kept = note_kept
        self.front = self.slow = 0
        self.surplus: store.upkeep.Surplus | None = None

    def forget_batches(self) -> None:
        keep = self.plan.options.retention_time("finished")
        if keep is not None:
            store.dependencies.forget_batches(keep, using=self.plan.using)

    def count(self) -> None:
        """
        Find the tasks beyond the count of RETENTION, once enough new tasks were submitted.

        Enough is a tenth of the rows read the last time. So a submit costs at most ten row
        reads, and at most a tenth too many are kept.
        """
        keep, known = self.plan.options.retention_count, self.surplus
        if keep is None:
            return
        newest = store.upkeep.newest_id(using=self.plan.using)
        if known is None or newest - known.newest >= known.read / 10:
            self.surplus = store.upkeep.surplus(keep, using=self.plan.using)

    def at_front(self) -> float | None:
        """Delete a batch at ``front``; return AT_ONCE where more may be old."""
        swept = self.swept(self.front)
        if swept.stopped or swept.reached is None:
            return None
        self.front = swept.reached
        return AT_ONCE

    def behind(self) -> float | None:
        """Delete a batch at ``slow``; return AT_ONCE where most of it was old."""
        if not self.front:
            return None
        swept = self.swept(self.slow)
        if swept.reached is None or swept.reached >= self.front:
            self.slow = 0
            return None
        self.slow = swept.reached
        return AT_ONCE if swept.deleted > MOSTLY_OVER else None

    def swept(self, after: int) -> store.upkeep.Swept:
        options = self.plan.options
        found = store.upkeep.purgeable(
            {status: options.retention_time(status) for status in Outcome.values},
            using=self.plan.using,
            after=after,
            over=self.surplus.last if self.surplus else {},
        )
        swept = store.upkeep.purge(found, using=self.plan.using)
        self.note_kept(swept.kept_for)
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


# The jobs of a janitor: what is done how often.


@dataclass(slots=True)
class Job:
    """
    A piece of the upkeep, done ``every`` so many seconds, first at ``due_at`` by the
    monotonic clock.

    ``call`` does a batch of it. Where it returns a float, it is due again in so many seconds.
    After each call it rests at least ``rest`` times as long as that took.
    """

    name: str
    every: float
    call: Callable[[], object]
    due_at: float = 0.0
    rest: float = 0.0


class Scan(Generic[P]):
    """
    Calls ``batch`` with one position after another, and at the end from ``first`` on again.

    It returns the next position, or at the end ``first`` or None. Between two batches of a scan
    are ``pause`` seconds.
    """

    def __init__(self, batch: Callable[[P], P | None], first: P, pause: float = AT_ONCE) -> None:
        self.batch = batch
        self.first = self.position = first
        self.pause = pause

    def __call__(self) -> float | None:
        reached = self.batch(self.position)
        self.position = self.first if reached is None else reached
        return None if self.position == self.first else self.pause
