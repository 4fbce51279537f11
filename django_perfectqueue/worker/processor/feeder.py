"""What calls the database for a processor: it claims, writes, renews and releases."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeVar

from django.db import Error, connections

from django_perfectqueue import store
from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.store.lanes.shares import queue_weights
from django_perfectqueue.store.values import ClaimRequest, Costs, Watermarks

from ..buffers import LATE
from ..database.link import AwayError
from ..shared.queue_order import orders
from .executors import Executor
from .leases import STAND_BACK
from .state import SharedState

R = TypeVar("R")

logger = logging.getLogger("django_perfectqueue.processor")

DONE = 0
RECYCLED = 3
LOOK_UP_AFTER = 5.0
LOOK_AFTER = 60.0
LAST_LOOKS = 5
# A renewal is tried at least so often before the leases expire.
LEAST_TRIES = 20
# In seconds: the next tasks are claimed while those run that take no longer.
SHORT = 0.05
WEIGHTS_AFTER = 5.0


class Feeder:
    """
    Makes all database calls of a processor but those of its handlers, in one thread, over one
    connection.

    It puts leases into the hand for the executor, and writes what that has completed. Each
    turn tries what is due once, renewals first, so that nothing that fails keeps the rest from
    its turn. Then it sleeps until the next is due, or until somebody wakes it.
    """

    def __init__(self, state: SharedState, executor: Executor) -> None:
        self.state = state
        self.executor = executor
        self.plan, self.options = state.plan, state.options
        self.resources, self.status = state.resources, state.status
        self.hand, self.completions = state.hand, state.completions
        self.usage, self.journal = state.usage, state.journal
        self.prefetch, self.leases, self.parking = state.prefetch, state.leases, state.parking
        self.link = state.link(self.resources.wakeup)
        self.link.returned = lambda: self.leases.give_back_uncertain(self.kept())
        self.orders = orders(self.options.QUEUE_ORDER, self.plan.queues)
        self.weights_at = 0.0
        self.marks = Watermarks()
        self.request = partial(
            ClaimRequest,
            alive_time=self.options.ALIVE_TIME,
            holder=self.status.holder,
            using=self.plan.using,
            marks=self.marks,
        )
        self.rested = self.found_few = False
        self.failed = self.cut_off = False
        self.looks = self.requested = 0
        self.taken_at = time.monotonic()
        self.poll_at = self.look_at = 0.0

    def run(self) -> int:
        """Feed the executor until a stop, a recycling, or in a burst until nothing is due."""
        # Over all tries of a call: a later one knows what an earlier one may have done.
        with store.database.single_operation():
            try:
                return self.feed()
            except AwayError:
                return DONE
            finally:
                self.close()

    def feed(self) -> int:
        state = self.state
        while not state.stopping:
            if state.trouble is not None:
                raise state.trouble
            if state.is_over():
                return RECYCLED
            if not self.turn():
                return DONE
        return DONE

    def turn(self) -> bool:
        """Do what is due, or sleep until something is; return False at the end of a burst."""
        last, taken = self.plan.burst and not self.hand.count(), None
        self.write_due(time.monotonic())
        if last and self.status.draining:
            return False
        if not self.failed:
            if (self.state.more or self.status.rung or last) and self.state.should_take():
                taken = self.take()
            else:
                self.wait()
        if self.failed:
            # The pause is a small part of the time of a lease, so that renewals are tried in time.
            pause = min(self.link.pause(), self.options.ALIVE_TIME / LEAST_TRIES)
            self.resources.wakeup.wait(pause)
        else:
            self.link.answered()
        return taken is None or not (last and self.is_last(taken))

    def attempt(self, verb: Callable[[], R]) -> R | None:
        """
        Call once; note when it fails, and return None. The next turn tries again.

        Once the database can't be reached, the rest of the turn is left out, so that renewals
        are tried again soon.
        """
        if self.cut_off:
            return None
        try:
            return self.link.call(verb)
        except Error as error:
            self.link.trouble(error)
            self.failed = True
            self.cut_off = self.link.what.family is store.database.Problem.UNREACHABLE
            return None

    def write_due(self, now: float) -> None:
        """Renew, write and release what is due, each once."""
        self.failed = self.cut_off = False
        if self.leases.is_alone():
            return
        if due_call := self.leases.due_call(now):
            self.attempt(due_call)
            # Renewals are first in each turn: where they hang, the others have their try, too.
            self.cut_off = False
        # The next claim takes them along where nothing is in hand.
        apart = self.hand.count() > 0 or self.link.away_since > 0.0
        if self.state.urgent or (apart and self.completions.is_late(now)):
            self.write_completions()
        if (
            self.hand.releasing
            or self.state.gives_way
            or (self.hand.batch and self.is_too_long(now))
        ):
            # New leases would wait, too, until a place is free.
            self.state.held_up = self.state.more = True
            self.state.gives_way = False
            self.attempt(self.leases.release_rest)
        if self.parking.strange:
            self.attempt(self.parking.park)
        if self.link.away_since:
            return
        # Not before a task that ends a rest, and not before its completion.
        may_write_usage = not (self.rested or self.found_few)
        if (may_write_usage and self.usage.is_due(now)) or self.usage.is_overdue(now):
            self.write_usage()
        if self.journal.is_due(now):
            self.write_notes()

    def is_too_long(self, now: float) -> bool:
        """Return whether to release the batch, which waits behind long tasks."""
        ends = self.state.stopping or self.status.draining
        return ends or now >= self.prefetch.over_at(self.taken_at)

    def take(self) -> list[store.Lease] | None:
        """Claim tasks, with what is to be written, and hand them out; None after an error."""
        self.state.more = False
        self.status.seek()
        before = time.monotonic()
        taken = self.attempt(self.acquire)
        if taken is None:
            self.state.more = True
            return None
        self.state.serve()
        self.taken_at = now = time.monotonic()
        self.poll_at = now + self.options.POLL_INTERVAL * spread()
        self.look_at = now + LOOK_AFTER * spread()
        known = self.parking.sort(taken)
        if not self.hand.count():
            # A claim does not renew the leases that are held already.
            self.status.renewed_at = before
            self.leases.held_until = before + self.options.ALIVE_TIME
        self.hand.add(known)
        self.look_around(taken)
        self.hand_out()
        if known and self.state.monitor_waits:
            self.state.monitor_wakeup.wake()
        self.write_last_notes()
        return taken

    def look_around(self, taken: list[store.Lease]) -> None:
        """Claim again if more may be due; wake another processor for the overflow."""
        capped = any(map(attrgetter("capped"), taken))
        full = len(taken) >= self.requested
        if self.hand.places == 1:
            self.state.low = (
                self.prefetch.next() if full and not capped and self.may_go_ahead() else 0
            )
        if taken if self.hand.places == 1 else self.state.room() <= 0:
            # It gets no wake-ups from now on, so it must look once it has room.
            self.status.seeking = False
            self.state.more = True
        if full or capped or self.status.rung:
            self.state.more = True
            if taken:
                self.resources.wakeups.wake_one()

    def may_go_ahead(self) -> bool:
        """
        Return whether to claim the next tasks for one place while it runs the last: where all
        are short, and nothing depends on what is held.

        Only on PostgreSQL: SQLite's driver gives up the GIL at each row, and MariaDB gains
        nothing by it.
        """
        if not 0.0 < self.prefetch.mean * self.requested <= SHORT:
            return False
        if self.state.shares or self.state.remaining is not None or self.prefetch.fixed is not None:
            return False
        if time.monotonic() < self.parking.look_until:
            return False
        return connections[self.plan.using].vendor == "postgresql"

    def hand_out(self) -> None:
        if self.hand.batch:
            self.executor.hand_out()

    def acquire(self) -> list[store.Lease]:
        """
        Acquire tasks and write completions in one transaction.

        After a few that ended a rest, only if more are due: to write their completions and to
        look takes fewer statements.
        """
        few, self.found_few = self.found_few, False
        if few and not self.plan.burst:
            self.write()
            if not self.look().due:
                return []
        if self.usage.lacks_clock():
            self.usage.ask_time()
        rested, self.rested = self.rested, False
        limit = self.requested = max(1, self.state.room())
        self.prefetch.limit()
        taken = self.lone_task(limit) if rested else []
        taken = taken or self.take_in_order(limit)
        self.found_few = rested and self.hand.places == 1 and 0 < len(taken) < limit
        return taken

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
        if self.looks == 1 and self.link.retry_until_done(
            lambda: store.upkeep.wake_forgotten_lanes(using=self.plan.using)
        ):
            return False
        if self.looks > LAST_LOOKS or not self.link.retry_until_done(self.look).due:
            return True
        if self.looks > 1:
            self.resources.wakeup.wait(STAND_BACK)
        return False

    def look(self) -> store.Outlook:
        plan = self.plan
        return store.look(plan.queues, using=plan.using, costs=self.costs(), marks=self.marks)

    def costs(self) -> Costs | None:
        """Return what the tasks must be expected to cost that it is kept for, if it is."""
        return self.resources.wakeups.kept_costs() if self.status.kept else None

    # Claims.

    def lone_task(self, limit: int) -> list[store.Lease]:
        """After idling, take a single task by the fast path."""
        if self.completions.waiting or len(self.plan.queues) > 1 or self.status.kept:
            return []
        return store.take_alone(self.request(queues=self.plan.queues, limit=limit))

    def take_in_order(self, limit: int) -> list[store.Lease]:
        """Take tasks in fair order; write completions in the same transaction."""
        before = time.monotonic()
        if before < self.parking.look_until:
            self.parking.unpark(before)
        taken = self.claim(limit, before)
        return taken if taken or not self.parking.unpark(before) else self.take_in_order(limit)

    def claim(self, limit: int, now: float) -> list[store.Lease]:
        """Write completions, and take tasks in fair order, in one transaction."""
        order = self.queues_in_order(now)
        crowd = self.state.crowd
        if crowd.processors:
            crowd.look(now)
        request = self.request(
            queues=order,
            limit=limit,
            serial=self.hand.places == 1 or limit > len(self.hand.free),
            processors=crowd.processors,
            overrun=crowd.overrun,
            costs=self.costs() if self.status.kept else None,
        )
        with self.completions.batch() as (done, refused):
            taken, late = store.finish_and_acquire(done, request, worker=self.state.worker)
            refused += late
        self.prefetch.took(taken)
        if self.state.shares:
            queues = [lease.queue for lease in taken]
            self.state.accounts.took(order, queues, limit, time.monotonic())
        return taken

    def queues_in_order(self, now: float) -> Sequence[str]:
        """Return the order of queues for this acquire; reread their weights every 5 s."""
        if not self.state.shares:
            return next(self.orders)
        if now >= self.weights_at:
            self.state.accounts.weights = queue_weights(self.plan.queues, using=self.plan.using)
            self.weights_at = now + WEIGHTS_AFTER
        return self.state.accounts.order(now, [lease.queue for lease in list(self.hand.batch)])

    # Sleep.

    def wait(self) -> None:
        """Write what no claim will take along, and sleep; note whether tasks may be due."""
        if self.link.away_since:
            # What has failed is due no more.
            self.attempt(self.look)
            return
        self.rested = not self.hand.count()
        if self.rested and self.completions.waiting:
            self.write_completions()
            return
        now = time.monotonic()
        if self.rested and self.usage.is_due(now):
            self.write_usage()
        self.sleep()
        if self.state.room() > 0 and self.is_called():
            logger.debug("A processor looks for tasks. pid=%s", os.getpid())
            self.state.more = True

    def sleep(self) -> None:
        # Set before the check: a task that ends from here on wakes this thread, and
        # has_to_act() sees those that ended before.
        self.state.wakes_at = float("inf")
        if not self.state.has_to_act():
            pause = self.pause(time.monotonic())
            self.state.wakes_at = time.monotonic() + pause
            self.resources.wakeup.wait(pause)
        self.state.wakes_at = 0.0

    def pause(self, now: float) -> float:
        """Return for how long nothing is due that does not wake it."""
        if self.leases.is_alone():
            # What is due stays due, and the end of the handler may wake nobody.
            return LATE
        until = [now + LOOK_UP_AFTER * spread()]
        if now < self.parking.take_at:
            until.append(self.parking.take_at)
        looks = not (
            self.state.more or self.state.stopping or self.resources.wakeups.has_listener()
        )
        if looks and self.state.room() > 0:
            until.append(self.poll_at)
        if (late_at := self.completions.late_at()) is not None:
            until.append(late_at)
        if self.hand.batch:
            until.append(self.prefetch.over_at(self.taken_at))
        return max(0.001, min(until) - now)

    def is_called(self) -> bool:
        """Return whether it was woken, or a poll is due."""
        now = time.monotonic()
        if self.status.rung:
            return True
        if not self.resources.wakeups.has_listener():
            return now >= self.poll_at
        if now < self.look_at:
            return False
        self.look_at = now + LOOK_AFTER * spread()
        outlook = self.attempt(self.look)
        return outlook is not None and outlook.due

    # Writing.

    def write(self) -> bool:
        """Write the buffered completions; return True."""
        if self.completions.waiting:
            with self.completions.batch() as (done, refused):
                refused += store.finish(done, using=self.plan.using, worker=self.state.worker)
        self.state.urgent = False
        return True

    def write_completions(self) -> None:
        """Write the buffered completions, and let the task begin that waits for that."""
        if self.attempt(self.write):
            self.hand_out()
            self.write_last_notes()

    def write_usage(self) -> None:
        """Write the buffered usage."""
        self.link.try_once(self.usage.write, "The usage")

    def write_notes(self) -> None:
        if not self.link.away_since:
            self.link.try_once(self.journal.write, "The journal of tasks")

    def write_last_notes(self) -> None:
        """Write the journal of tasks whose completions were just written."""
        if self.journal.left:
            self.write_notes()

    def kept(self) -> set[tuple[int, int]]:
        """Return the fences of all leases that this processor knows of."""
        hand = self.hand
        with hand.lock:
            known = [*hand.leases(), *hand.releasing, *self.parking.strange]
            return {lease.fence for lease in known} | self.completions.fences()

    # The end.

    def close(self) -> None:
        """Release the batch, wait for the running tasks, and write all buffers."""
        self.state.stop()
        self.status.seeking = False
        while self.hand.running() and self.state.trouble is None:
            self.turn()
        self.executor.dismiss()
        acts: list[Callable[[], object]] = [
            self.leases.release_rest,
            self.parking.park,
            self.write,
        ]
        for act in acts:
            try:
                self.link.retry_until_done(act)
            except (AwayError, PreemptedError):
                logger.error("The database is away; tasks run again when their leases expire.")
        if not self.link.away_since:
            self.write_usage()
        self.journal.hurry()
        self.write_last_notes()


def spread() -> float:
    """Return a random factor, so that processors do not wake in step."""
    return random.uniform(0.7, 1.0)  # noqa: S311
