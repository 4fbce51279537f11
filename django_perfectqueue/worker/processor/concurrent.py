"""A processor that runs several tasks at once."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time

from django_perfectqueue import store
from django_perfectqueue.queue import AcquiredTask

from ..attempt.ending import Ending
from ..attempt.runner import Running
from ..database.link import AwayError
from ..plan import Plan
from ..report import Reporter
from .prefetch import MOST
from .processor import DONE, LOOK_AFTER, LOOK_UP_AFTER, RECYCLED, Processor
from .resources import ProcessorResources

logger = logging.getLogger("django_perfectqueue.processor")

WRITE_AFTER = 0.025
IDLE = 60.0


class ConcurrentProcessor(Processor):
    """
    Runs several tasks at once, as many as it has places, outside of the main thread. The main
    thread acquires tasks and writes completions, so that no handler blocks it.

    A free place takes the next task of the batch itself. The main thread sleeps until there is
    something to acquire or to write; the end of a task wakes it.
    """

    def __init__(self, plan: Plan, resources: ProcessorResources, reporter: Reporter) -> None:
        super().__init__(plan, resources, reporter)
        places = plan.options.places
        self.going: list[Running | None] = [None] * places
        self.free = list(reversed(range(places)))
        self.lock = threading.Lock()
        self.sorting = False
        self.held_up = self.gives_way = False
        self.more = True
        self.wakes_at = 0.0
        self.poll_at = self.look_at = 0.0
        self.trouble: BaseException | None = None
        self.idle_since: float | None = None

    # Called by the threads that run tasks.

    def hand_out(self) -> None:
        """Start tasks of the batch in the free places."""
        raise NotImplementedError

    def dismiss(self) -> None:
        """End the idle threads."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Close idle connections, except those of the thread pool, which closes its own."""

    def next_task(self) -> Running | None:
        """Return an attempt that begins now, if there is a lease and a free place."""
        if self.leases.have_expired(time.monotonic()):
            self.leases.preempt_all()
        with self.lock:
            if not self.free or self.has_enough() or not (lease := self.next_lease()):
                return None
            task = AcquiredTask(lease, alive_time=self.options.ALIVE_TIME, worker=self.worker)
            running = Running(task, index=self.free.pop())
            self.going[running.index] = running
            self.note_begin(task, running.index)
            return running

    def has_enough(self) -> bool:
        """Return whether the running tasks are its last before it is replaced."""
        return self.remaining is not None and len(self.going) - len(self.free) >= self.remaining

    def next_lease(self) -> store.Lease | None:
        if self.stopping or self.sorting:
            return None
        for _lease in range(len(self.batch)):
            lease = self.in_hand.next(time.monotonic())
            if lease is None or not self.runs(lease.task_id):
                return lease
            # An earlier attempt of this task lost its lease, but its handler still runs.
            self.batch.append(lease)
        return None

    def give_way(self) -> None:
        """Have the main thread do it, which waits for the database."""
        self.gives_way = True
        self.resources.wakeup.wake()

    def runs(self, task_id: int) -> bool:
        return any(one is not None and one.task.lease.task_id == task_id for one in self.going)

    def ended(self, running: Running, ending: Ending) -> None:
        """Record the result of an attempt, and free its place."""
        task, index = running.task, running.index
        with self.lock:
            if ending.completion is not None:
                self.completions.put(ending, ending.completion)
            self.note_end(task, ending.seconds, index)
            self.going[index] = None
            self.free.append(index)
            self.held_up = False
        if ending.completion is None:
            self.report([ending])
        if ending.completion is None or task.lease.capped:
            # The task may be due again, or its cap admits another.
            self.more = True
        if ending.stop:
            self.stop()
        if self.should_wake():
            self.wakes_at = 0.0
            self.resources.wakeup.wake()

    def should_wake(self) -> bool:
        """Return whether the main thread must wake before the end of its sleep."""
        wakes_at = self.wakes_at
        if not wakes_at:
            return False
        more = self.more or self.slot.rung
        if self.stopping or not self.tasks_in_hand() or (more and self.should_take()):
            return True
        return wakes_at - time.monotonic() > WRITE_AFTER

    def fail(self, error: BaseException) -> None:
        """End the processor for an unexpected error; the supervisor replaces it."""
        self.trouble = error
        self.resources.wakeup.wake()

    # For all threads.

    @property
    def running(self) -> list[Running]:
        return [one for one in self.going if one is not None]

    def kept(self) -> set[tuple[int, int]]:
        with self.lock:
            return super().kept()

    def tasks_in_hand(self) -> int:
        return len(self.going) - len(self.free) + len(self.batch)

    def room(self) -> int:
        """Return how many more tasks to acquire."""
        with self.lock:
            # Under the lock, a task that begins or ends is counted exactly once.
            in_hand, remaining = self.tasks_in_hand(), self.remaining
        room = min(MOST, self.prefetch.next() - in_hand)
        return room if remaining is None else min(room, remaining - in_hand)

    def should_take(self) -> bool:
        """Return whether to acquire now: for short tasks, once half of the room is free."""
        now = time.monotonic()
        if (
            (self.held_up and not self.free)
            or self.leases.is_behind(now)
            or now < self.parking.take_at
        ):
            return False
        room = self.room()
        return room > 0 and (not self.batch or 2 * room >= min(MOST, self.prefetch.next()))

    def wanted(self) -> int:
        room = self.room()
        self.prefetch.limit()
        return max(1, room)

    def are_serial(self, count: int) -> bool:
        return count > len(self.free)

    def renewed(self, at: float) -> None:
        """Keep the oldest renewal: an acquire does not renew the leases held before."""
        if not self.tasks_in_hand():
            self.slot.renewed_at = at

    # For the main thread.

    def work(self) -> int:
        while not self.stopping:
            if self.trouble is not None:
                raise self.trouble
            if self.is_spent():
                return RECYCLED
            self.tend()
            last = self.plan.burst and not self.tasks_in_hand()
            if (self.more or self.slot.rung or last) and self.should_take():
                taken = self.take()
                if last and self.is_last(taken):
                    return DONE
            else:
                self.wait()
        return DONE

    def take(self) -> list[store.Lease]:
        self.more = False
        self.resources.wakeup.wait(0)
        self.slot.seek()
        taken = self.link.insist(self.acquire)
        self.serve()
        self.taken_at = time.monotonic()
        self.poll_at = self.taken_at + self.options.POLL_INTERVAL * spread()
        self.look_at = self.taken_at + LOOK_AFTER * spread()
        self.receive(taken)
        self.write_last_notes()
        if taken:
            self.monitor.wake()
        self.look_around(taken)
        return taken

    def receive(self, taken: list[store.Lease]) -> None:
        self.sorting = True
        try:
            self.batch.extend(taken)
            self.parking.park()
        finally:
            self.sorting = False
        self.hand_out()

    def look_around(self, taken: list[store.Lease]) -> None:
        """Acquire again if more may be due; wake another processor for the overflow."""
        in_part = self.are_serial(self.requested) and any(lease.capped for lease in taken)
        more = len(taken) >= self.requested or in_part
        if self.room() <= 0:
            # It gets no wake-ups from now on, so it must look once it has room.
            self.slot.seeking = False
            self.more = True
        if more or self.slot.rung:
            self.more = True
            if taken:
                self.resources.wakeups.wake_one()

    def tend(self) -> None:
        """Do the work that is due."""
        now = time.monotonic()
        if self.in_hand.unsure:
            self.link.insist(self.leases.make_sure)
            self.hand_out()
        if self.gives_way or (self.batch and now >= self.prefetch.over_at(self.taken_at)):
            # New leases would wait, too, until a place is free.
            self.held_up = self.more = True
            self.link.insist(self.leases.release_rest)
            self.gives_way = False
        self.write_due(now)

    def wait(self) -> None:
        """Wait until there is work; note whether tasks may be due."""
        self.rested = not self.tasks_in_hand() and not self.completions.waiting
        self.rest(time.monotonic())
        self.sleep()
        if self.room() > 0 and self.is_called():
            logger.debug("A processor looks for tasks. pid=%s", os.getpid())
            self.more = True

    def rest(self, now: float) -> None:
        """Disconnect after a minute of idleness."""
        if not self.rested:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now
        elif now - self.idle_since >= IDLE:
            self.idle_since = float("inf")
            self.disconnect()

    def sleep(self) -> None:
        # Set before the check: a task that ends from here on wakes this thread, and
        # has_to_act() sees those that ended before.
        self.wakes_at = float("inf")
        if not self.has_to_act():
            pause = self.pause(time.monotonic())
            self.wakes_at = time.monotonic() + pause
            self.resources.wakeup.wait(pause)
        self.wakes_at = 0.0

    def has_to_act(self) -> bool:
        if self.stopping:
            return not self.running
        last = self.plan.burst and not self.tasks_in_hand()
        over = self.trouble is not None or self.is_spent()
        # A link that waited meanwhile may have read the byte of a wake-up; ``rung`` stays.
        more = self.more or self.slot.rung or last
        return over or (more and self.should_take())

    def pause(self, now: float) -> float:
        until = [now + LOOK_UP_AFTER * spread()]
        if now < self.parking.take_at:
            until.append(self.parking.take_at)
        looks = not (self.more or self.stopping or self.resources.wakeups.is_tended())
        if looks and self.room() > 0:
            until.append(self.poll_at)
        if self.link.away_since:
            # This link has given up waiting; the monitor keeps retrying over its own.
            return max(0.001, min(until) - now)
        if (write_at := self.completions.late_at(after=WRITE_AFTER)) is not None:
            until.append(write_at)
        if self.batch:
            until.append(self.prefetch.over_at(self.taken_at))
        return max(0.001, min(until) - now)

    def is_called(self) -> bool:
        """Return whether it was woken, or a poll is due."""
        now = time.monotonic()
        if self.slot.rung:
            return True
        if not self.resources.wakeups.is_tended():
            return now >= self.poll_at
        if now < self.look_at:
            return False
        self.look_at = now + LOOK_AFTER * spread()
        return self.link.insist(self.look).due

    def close(self) -> None:
        self.stop()
        self.slot.seeking = False
        self.let_end()
        self.dismiss()
        super().close()

    def let_end(self) -> None:
        """Release the batch, and wait for the running tasks."""
        while self.running and self.trouble is None:
            with contextlib.suppress(AwayError):
                self.link.insist(self.leases.release_rest)
                self.write_due(time.monotonic())
            self.sleep()

    def write_due(self, now: float) -> None:
        """Write the completions and the usage that have waited long enough."""
        if self.completions.is_late(now, after=WRITE_AFTER):
            self.link.insist(self.write_completions)
            self.write_last_notes()
        if self.usage.is_due(now):
            self.write_usage()


def spread() -> float:
    """Return a random factor, so that processors do not wake in step."""
    return random.uniform(0.7, 1.0)  # noqa: S311
