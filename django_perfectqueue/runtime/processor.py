"""The process that acquires tasks and runs them."""

from __future__ import annotations

import logging
import os
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import Error, connections

from django_perfectqueue import conf, store
from django_perfectqueue.application.dispatch import in_words
from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.queue import AcquiredTask

from .belfry import Belfry
from .bell import Bell
from .database import AwayError, Link, discard, in_one_line
from .ending import Ending, announce
from .guard import Guard
from .heart import Heart
from .keeper import Keeper
from .ledger import Ledger
from .outbox import Outbox
from .pace import Pace
from .plan import Plan, worker_name
from .queue_order import orders
from .report import Reporter
from .runner import Runner, Running
from .signals import REOPEN_LOGS, RESTART_NOW, STOP_NOW, take_signals
from .slate import Slate

logger = logging.getLogger("django_perfectqueue.processor")

DONE = 0
RECYCLED = 3
LAST_TRIES = 10.0
LOOK_UP_AFTER = 5.0
LOOK_AFTER = 60.0

UNCERTAIN = store.Failure(error="lost", message="The answer to its acquire was lost.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a supervisor gives a processor along, and keeps when it dies."""

    number: int
    holder: int
    slate: Slate
    bell: Bell
    pulse: int
    lifeline: int
    belfry: Belfry = field(default_factory=Belfry)


class Processor:
    """
    Takes due tasks in fair order, runs them one by one, and writes what became of them.

    A handler that returns is finished together with its neighbours: with the next
    acquire, or some 50 ms later when a handler takes long.
    """

    def __init__(self, plan: Plan, seat: Seat, reporter: Reporter) -> None:
        self.plan = plan
        self.options = plan.options
        self.seat = seat
        self.reporter = reporter
        self.slate = seat.slate
        self.worker = worker_name()
        self.orders = orders(plan.options.QUEUE_ORDER, plan.queues)
        self.stopping = False
        self.stopping_now = False
        self.remaining = plan.options.MAX_REQUEST_PER_CHILD
        self.batch: deque[store.Lease] = deque()
        self.unsure = False
        self.asked = 0
        self.taken_at = time.monotonic()
        self.rested = False
        self.strange: set[str] = set()
        self.pace = Pace(plan.options.TASK_PREFETCH)
        self.outbox = Outbox(self.posted)
        self.link = Link(plan.using, seat.bell, self.patience)
        self.link.returned = self.give_back_uncertain
        self.aside = Link(plan.using, seat.bell, self.patience)
        self.ledger = Ledger(using=plan.using, kept=plan.options.USAGE_TIME != 0)
        self.guard = Guard()
        self.runner = Runner(plan.dispatch, link=self.link, guard=self.guard)
        self.heart = Heart(self)
        self.keeper = Keeper(self, pulse=seat.pulse, lifeline=seat.lifeline)

    def run(self) -> int:
        """Work until told to stop, recycled, or in a burst until nothing is due."""
        self.guard.install()
        take_signals(self.on_signal)
        self.plan.dispatch.after_fork()
        self.keeper.start()
        try:
            self.link.insist(self.ledger.set_clock)
            return self.work()
        except AwayError:
            return DONE
        finally:
            self.close()

    def on_signal(self, signum: int, frame: object) -> None:
        if signum == REOPEN_LOGS:
            self.keeper.logs_moved = True
        else:
            self.stop(now=signum in (STOP_NOW, RESTART_NOW))
        self.keeper.bell.ring()

    def stop(self, *, now: bool = False) -> None:
        """Take no more, and end with the running task. May come twice, from any thread."""
        self.stopping = True
        self.stopping_now = self.stopping_now or now
        self.seat.bell.ring()

    def patience(self) -> float:
        return LAST_TRIES if self.stopping else float("inf")

    @property
    def running(self) -> list[Running]:
        """The attempts that are going on; asked from any thread."""
        running = self.runner.running
        return [] if running is None else [running]

    def is_busy(self) -> bool:
        return bool(self.running or self.batch or self.outbox.waiting)

    def work(self) -> int:
        while not self.stopping:
            if self.remaining == 0:
                return RECYCLED
            if self.ledger.is_due(time.monotonic()):
                self.keep_books()
            self.seat.bell.wait(0)
            self.slate.seek()
            taken = self.link.insist(self.acquire)
            self.taken_at = time.monotonic()
            self.batch.extend(taken)
            if taken:
                self.pass_on(taken)
            self.keeper.wake()
            self.put_strange_back()
            self.run_batch()
            if not taken:
                if self.plan.burst:
                    return DONE
                self.idle()
                self.rested = True
        return DONE

    def acquire(self) -> list[store.Lease]:
        """Take what may run next, and write what has run, in one transaction."""
        if self.stopping:
            return []
        limit = self.pace.limit()
        if self.remaining is not None:
            limit = min(limit, self.remaining)
        self.asked = limit
        if lone := self.lone_task(limit):
            return lone
        before = time.monotonic()
        with self.outbox.post() as post:
            taken = store.acquire(
                next(self.orders),
                limit=limit,
                alive_time=self.options.ALIVE_TIME,
                holder=self.seat.holder,
                using=self.plan.using,
                finished=post.completions,
                refused=post.refused,
                worker=self.worker,
                serial=True,
            )
        self.heart.renewed_at = before
        return taken

    def lone_task(self, limit: int) -> list[store.Lease]:
        """After a rest, take what may be the only task there is by the shortest way."""
        rested, self.rested = self.rested, False
        if not rested or self.outbox.waiting or len(self.plan.queues) > 1:
            return []
        before = time.monotonic()
        taken = store.take_alone(
            self.plan.queues[0],
            limit=limit,
            alive_time=self.options.ALIVE_TIME,
            holder=self.seat.holder,
            using=self.plan.using,
        )
        if taken:
            self.heart.renewed_at = before
        return taken

    def pass_on(self, taken: Sequence[store.Lease]) -> None:
        """
        Wake one more where there may be more: it got all that it asked for or was given a
        part of what has a cap, or it was rung for something that came too late for what it
        has taken.
        """
        self.slate.rest()
        capped = any(lease.capped for lease in taken)
        if len(taken) >= self.asked or capped or self.slate.was_rung:
            self.seat.belfry.wake_one()

    def put_strange_back(self) -> None:
        """Let tasks of unknown types wait for a release that knows them."""
        knows = self.plan.dispatch.knows
        strange = [lease for lease in self.batch if not knows(lease.type)]
        if not strange:
            return
        for type_ in sorted({lease.type for lease in strange} - self.strange):
            self.strange.add(type_)
            near = conf.nearest(type_, map(in_words, self.plan.dispatch.load()))
            logger.warning("No handler for tasks of this type; they wait. type=%s%s", type_, near)
        dropped = [lease for lease in strange if self.drop(lease)]
        self.link.insist(lambda: self.release(dropped, delay=self.options.RETRY_WAIT))

    def run_batch(self) -> None:
        while not self.stopping:
            if self.batch and self.pace.is_over(time.monotonic() - self.taken_at):
                self.link.insist(self.release_rest)
            # While it posts, the lease stays in the batch: what is held nowhere is given back.
            if self.outbox.waiting and self.should_post_before_next():
                self.link.insist(self.post)
            if self.stopping or not (lease := self.next_lease()):
                return
            self.run_one(lease)

    def next_lease(self) -> store.Lease | None:
        """Return what to run next; what can no longer be held for sure is let go."""
        while True:
            if self.unsure:
                self.link.insist(self.make_sure)
            if self.heart.have_lapsed(time.monotonic()):
                self.heart.lapse()
            try:
                lease = self.batch.popleft()
            except IndexError:
                return None
            if not self.unsure:
                return lease
            self.batch.appendleft(lease)

    def make_sure(self) -> None:
        """Let go of what the database says is not held: it may have been given back unheard."""
        self.unsure = False
        try:
            if held := list(self.batch):
                self.heart.beat(held, None)
        except BaseException:
            self.unsure = True
            raise

    def hold_again(self, leases: Sequence[store.Lease]) -> None:
        """Put back into the batch what may have been let go, or not: the answer was lost."""
        self.unsure = True
        self.batch.extendleft(reversed(leases))

    def should_post_before_next(self) -> bool:
        try:
            type_ = self.batch[0].type
        except IndexError:
            return False
        return self.pace.may_be_long(type_) or self.outbox.is_late(time.monotonic())

    def run_one(self, lease: store.Lease) -> None:
        task = AcquiredTask(lease, alive_time=self.options.ALIVE_TIME, worker=self.worker)
        limits = self.plan.time_limits(lease)
        self.slate.begin(lease.task_id, since=task.started, limits=limits)
        self.ledger.begin(task)
        ending = self.runner.run(task)
        self.ledger.end(task.started + ending.seconds)
        self.slate.end()
        self.pace.ran(lease.type, ending.seconds)
        if self.remaining is not None:
            self.remaining -= 1
        if ending.completion is not None:
            self.outbox.put(ending, ending.completion)
        else:
            self.tell([ending])
        if ending.stop:
            self.stop()

    def idle(self) -> None:
        """
        Wait for a ring; for no longer than POLL_INTERVAL when no one is there to ring.

        A look every minute or so keeps the connection alive, and catches what everyone
        else has missed. Who was to be rung but was not, since the ringer died just then, looks
        as well: no one else would ring it.
        """
        look_at = time.monotonic() + LOOK_AFTER * random.uniform(0.7, 1.0)  # noqa: S311
        while not self.stopping:
            tended = self.seat.belfry.is_tended()
            pause = LOOK_UP_AFTER if tended else self.options.POLL_INTERVAL
            rung = self.seat.bell.wait(pause * random.uniform(0.7, 1.0))  # noqa: S311
            if rung or not tended or self.slate.was_rung:
                logger.debug("A processor looks for tasks. pid=%s rung=%s", os.getpid(), rung)
                return
            if time.monotonic() >= look_at:
                if self.link.insist(self.look).due:
                    return
                look_at = time.monotonic() + LOOK_AFTER
            if self.ledger.is_due(time.monotonic()):
                self.keep_books()

    def look(self) -> store.Outlook:
        return store.look(self.plan.queues, using=self.plan.using)

    def post(self) -> None:
        """Write what has run and has not been written."""
        if self.outbox.waiting:
            with self.outbox.post() as post:
                using, worker = self.plan.using, self.worker
                post.refused += store.finish(post.completions, using=using, worker=worker)

    def keep_books(self, *, last: bool = False) -> None:
        """Write who was given how much; that this fails is no task's trouble."""
        try:
            with store.one_call():
                self.ledger.write(last=last)
        except Error as error:
            discard(connections[self.plan.using])
            logger.warning(
                "The shares received can't be written; tasks go on. pid=%s error=%s: %s",
                os.getpid(),
                type(error).__name__,
                in_one_line(error),
            )

    def posted(self, endings: Sequence[Ending]) -> None:
        for ending in endings:
            if ending.word == "preempted":
                logger.warning("A result came too late. key=%s", ending.task.key)
            announce(ending.word, ending.task, ending.handler)
        self.tell(endings)

    def tell(self, endings: Sequence[Ending]) -> None:
        for ending in endings:
            self.slate.count(ending.word)
        self.reporter.tell(endings)

    def drop(self, lease: store.Lease) -> bool:
        """Take a task out of the batch; False when it is running already."""
        try:
            self.batch.remove(lease)
        except ValueError:
            return False
        return True

    def release_rest(self) -> None:
        """Give back at once what has not been started."""
        rest = []
        while self.batch:
            try:
                rest.append(self.batch.popleft())
            except IndexError:
                break
        if rest:
            try:
                self.release(rest)
            except BaseException:
                self.hold_again(rest)
                raise

    def release(self, leases: Sequence[store.Lease], *, delay: float = 0.0) -> None:
        refused = store.release(leases, using=self.plan.using, delay=delay)
        self.slate.count("released", len(leases) - len(refused))

    def give_back_uncertain(self) -> None:
        """After trouble: what was acquired without our knowing must not stay leased."""
        keep = {lease.task_id for lease in self.heart.held()} | self.outbox.task_ids()
        store.give_back(
            self.seat.holder,
            using=self.plan.using,
            alive_time=self.options.ALIVE_TIME,
            keep=keep,
            worker=self.worker,
            why=UNCERTAIN,
        )

    def close(self) -> None:
        """Leave nothing behind that another could be running, or that has run."""
        self.stopping = True
        self.slate.rest()
        for act in (self.release_rest, self.post):
            try:
                self.link.insist(act)
            except (AwayError, PreemptedError):
                logger.error("The database is away; what is held comes back with its lease.")
        if not self.link.away_since:
            self.keep_books(last=True)
        self.keeper.stop()
        self.plan.dispatch.after_child_end()
        self.slate.sign_off()
        logger.debug("A processor ends. pid=%s", os.getpid())
