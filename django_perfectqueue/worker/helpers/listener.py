"""The helper that receives notifications of new tasks and wakes a processor."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterable

from django_perfectqueue import store
from django_perfectqueue.models import Account
from django_perfectqueue.store.claims.acquire import comes_before, first_waiting
from django_perfectqueue.store.notify.datagrams import AT_REST
from django_perfectqueue.store.values import Watermarks, rested_at

from ..plan import Plan
from ..shared.status import Wakeups, WorkerStatus
from .base import Helper

logger = logging.getLogger("django_perfectqueue.listener")

LONGEST_WAIT = 2.0
PROOF_WAIT = 2.0
STEPS = 16
SOONEST = 0.02
GRACE = 0.05
WHILE_BUSY = 0.1
BUSY_INTERVAL = 2.0
MARGIN = 0.002
# AT_REST where only programs of this host notify.
UNHEARD_AT_REST = 3
UNHEARD_FOR = 3600.0
HEARD_FOR = 1.0


class Listener(Helper):
    """
    Receives the database's notifications, waits for the next due time, and polls.

    It polls in one statement: soon after a poll has found a task without a notification, and
    else less and less often, down to POLL_INTERVAL, and while no task runs to a multiple of
    it: AT_REST where the database sends each notification, otherwise UNHEARD_AT_REST unless a
    poll has found a task without a notification within the last hour, as of another host.
    After a poll that took long, as beside an old snapshot on PostgreSQL, it rests for nine times as
    long, but until a schedule is due or for BUSY_INTERVAL at most.
    While all processors are busy it polls for schedules only, when the next is due and at
    least each BUSY_INTERVAL; and for lanes to which a running task is to yield that has steps.
    """

    def __init__(self, plan: Plan, wakeups: Wakeups, worker_status: WorkerStatus) -> None:
        super().__init__(plan)
        self.wakeups = wakeups
        self.worker_status = worker_status
        self.notifications: store.notify.SocketListener | store.notify.ChannelListener | None = None
        self.longest = plan.options.POLL_INTERVAL
        self.shortest = min(self.longest, max(SOONEST, self.longest / STEPS))
        self.pause = self.shortest
        self.look_at = self.rested_at = 0.0
        self.tick_at = 0.0
        self.known_at = self.heard_at = self.unheard_until = 0.0
        self.may_be_unheard = False
        self.marks = Watermarks(taken=Watermarks.MANY)

    def work(self) -> None:
        if self.plan.options.NOTIFY:
            self.notifications = store.notify.listener_of(self.plan.using)
        try:
            while not (self.stopping or self.worker_status.leaving):
                self.link.retry_until_done(self.attend)
                self.wakeups.note_listener()
                next_at = max(self.look_at, min(self.next_look_at(), self.known_at + MARGIN))
                pause = max(0.0, min(LONGEST_WAIT, next_at - time.monotonic()))
                self.wait(pause, *([self.notifications] if self.notifications else []))
        finally:
            # The other one's connection is closed with all others, and asks no database first.
            if isinstance(self.notifications, store.notify.SocketListener):
                self.notifications.close()

    def attend(self) -> None:
        """Handle notifications and polls; after an error the link repeats it from the start."""
        if self.notifications is not None and not self.notifications.is_open:
            self.start_listening()
        self.take(self.received())
        now = time.monotonic()
        if self.known_at + MARGIN <= now < self.next_look_at():
            # A claim looks for what is due, too.
            self.known_at, self.heard_at = math.inf, now
            self.wakeups.wake_one()
        elif now >= max(self.look_at, self.next_look_at()):
            self.look()
            # Notifications that arrived with the answer don't make the socket readable.
            self.take(self.received())

    def next_look_at(self) -> float:
        """Return until when it polls no more, after a poll that took long: no schedule is late."""
        return min(self.rested_at, self.tick_at)

    def start_listening(self) -> None:
        """Listen, and poll for earlier tasks; poll only, where listening fails."""
        assert self.notifications is not None
        self.look_at = 0.0
        try:
            self.notifications.open()
        except OSError as error:
            self.poll_only(f"no socket can be made. {error}")
            return
        if isinstance(self.notifications, store.notify.ChannelListener):
            self.prove(self.notifications)

    def prove(self, listener: store.notify.ChannelListener) -> None:
        """Test whether notifications arrive."""
        listener.prove()
        deadline = time.monotonic() + PROOF_WAIT
        while not (self.stopping or listener.proven) and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic(), listener)
            self.take(listener.read())
        if not (self.stopping or listener.proven):
            listener.close()
            self.poll_only(
                "no notification arrives. There seems to be a pooler in transaction mode before"
                " the database; give the worker a connection without it, or in session mode."
            )

    def poll_only(self, why: str) -> None:
        """Log why notifications don't arrive, and poll from now on."""
        logger.warning(
            "The worker gets no notifications and polls instead: %s database=%s seconds=%s",
            why,
            self.plan.using,
            self.longest,
        )
        self.notifications = None

    def received(self) -> Iterable[store.notify.Notification]:
        return self.notifications.read() if self.notifications is not None else ()

    def take(self, messages: Iterable[store.notify.Notification]) -> None:
        """
        Wake a processor for each task, now or when it is due; pass on what is for holders.
        """
        for message in messages:
            if message.holder is not None:
                self.wakeups.call(message.holder)
                continue
            if message.queue and message.queue not in self.plan.queues:
                continue
            now = time.monotonic()
            if message.delay > 0:
                self.look_at = min(self.look_at, now + message.delay + MARGIN)
                self.known_at = min(self.known_at, now + message.delay)
            else:
                self.heard_at, self.may_be_unheard = now, False
                # One that is kept may not be for this task.
                takes_any = self.wakeups.has_free_for_all()
                if not (self.wakeups.wake_one() and takes_any) and self.wakeups.may_yield(now):
                    self.look_at = min(self.look_at, now + SOONEST)
                    continue
                # A poll now would find the same task, and wake another processor for it.
                self.look_at = min(max(self.look_at, now + GRACE), now + self.longest)
                self.pause = min(self.pause, self.longest)

    def look(self) -> None:
        """Poll for due tasks, and wake a processor for them; fire due schedules."""
        wait = min(self.shortest, WHILE_BUSY)
        is_free, costs = self.wakeups.has_free(), self.wakeups.free_costs()
        if not is_free or costs is not None:
            self.rank()
        if is_free or time.monotonic() >= self.tick_at:
            plan = self.plan
            began = time.monotonic()
            outlook = store.look(plan.queues, using=plan.using, costs=costs, marks=self.marks)
            self.rested_at = rested_at(began)
            if is_free:
                wait = self.wake_for(outlook, is_kept=costs is not None)
                if costs is not None and self.wakeups.may_yield(time.monotonic()):
                    wait = min(wait, WHILE_BUSY)
            else:
                self.heard_at = time.monotonic()
            if outlook.ticks_due:
                store.schedules.fire_schedules(using=self.plan.using)
                wait = min(wait, SOONEST)
            next_tick = BUSY_INTERVAL if outlook.tick is None else outlook.tick
            self.tick_at = time.monotonic() + min(max(SOONEST, next_tick), BUSY_INTERVAL)
        self.look_at = time.monotonic() + wait

    def rank(self) -> None:
        """Note which tasks that may yield soon are outranked by lanes that wait."""
        after = self.plan.options.YIELD_AFTER
        if after is None:
            return
        tasks = self.wakeups.may_yield(time.monotonic() + WHILE_BUSY - after)
        if not tasks:
            return
        queues, using = self.plan.queues, self.plan.using
        own = Account.objects.using(using).in_bulk({task.account for task in tasks})
        waiting = [one for queue in queues for one in first_waiting(queue, using=using)]
        outranking = set()
        for task in tasks:
            other = own.get(task.account)
            first = [one for one in waiting if other and self.is_before(one, other)]
            outranking.update(first)
            task.outranked = bool(first)
        self.wakeups.outranking.value = len(outranking)

    def is_before(self, one: Account, other: Account) -> bool:
        """Return whether the first may have a processor of the other, as queues are tried."""
        queues, is_strict = self.plan.queues, self.plan.options.QUEUE_ORDER == "ordered"
        if is_strict and queues.index(one.queue) > queues.index(other.queue):
            return False
        return comes_before(one, other)

    def wake_for(self, outlook: store.Outlook, *, is_kept: bool) -> float:
        """Wake a processor if something is due; return in how many seconds to poll again."""
        self.note_unheard(due=outlook.due)
        if outlook.due:
            self.wakeups.wake_one()
            # What is due may be none that a kept processor takes.
            self.pause = self.pause if is_kept else self.shortest
        self.known_at = time.monotonic() + (math.inf if outlook.wait is None else outlook.wait)
        longest = self.longest * self.times_at_rest()
        wait = min(self.pause, longest) * random.uniform(0.9, 1.0)  # noqa: S311
        self.pause = min(longest, self.pause * 2)
        return wait if outlook.wait is None else min(wait, outlook.wait + MARGIN)

    def note_unheard(self, *, due: bool) -> None:
        """
        Record that something was due of which no notification came, and no poll had known.

        It counts at the next poll: the notification is sent after the commit.
        """
        now = time.monotonic()
        if self.may_be_unheard:
            self.unheard_until = now + UNHEARD_FOR
        self.may_be_unheard = due and now < self.known_at and now - self.heard_at > HEARD_FOR
        if due:
            self.heard_at = now

    def times_at_rest(self) -> int:
        """Return for how many times POLL_INTERVAL nothing can be missed."""
        # What runs may put tasks off, of which no notification comes.
        if self.notifications is None or self.wakeups.is_at_work():
            return 1
        if isinstance(self.notifications, store.notify.ChannelListener):
            return AT_REST
        return 1 if time.monotonic() < self.unheard_until else UNHEARD_AT_REST
